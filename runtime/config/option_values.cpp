#include "runtime/config/option_values.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>

namespace refrain {
namespace {

// The factor of a last letter; nothing: it is none.
std::optional<double> factor_of(char letter) {
  switch (letter) {
    case 'k':
      return 1e3;
    case 'm':
      return 1e6;
    case 'g':
      return 1e9;
    case 't':
      return 1e12;
    case 'K':
      return 0x1p10;
    case 'M':
      return 0x1p20;
    case 'G':
      return 0x1p30;
    case 'T':
      return 0x1p40;
    default:
      return std::nullopt;
  }
}

// Plain digits stay what they are; "1.5k" becomes "1500". Fractions of one are refused.
std::optional<int64_t> whole_number(const std::string& text) {
  int64_t plain = 0;
  if (CLI::detail::lexical_cast(text, plain)) return plain;
  const auto factor = text.empty() ? std::nullopt : factor_of(text.back());
  if (!factor) return std::nullopt;
  double number = 0;
  if (!CLI::detail::lexical_cast(text.substr(0, text.size() - 1), number)) return std::nullopt;
  const double value = number * *factor;
  const double whole = std::round(value);  // 2.3k is not quite 2300
  if (!(std::abs(value) < 0x1p53) || std::abs(value - whole) > 1e-6) return std::nullopt;
  return static_cast<int64_t>(whole);
}

}  // namespace

CLI::Validator number_in(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        if (number && value >= least && value <= most) return std::string();
        return fmt::format("\"{}\" is not a number from {} to {}", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

CLI::Validator human_int(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const auto value = whole_number(text);
        if (!value || *value < least || *value > most) {
          return fmt::format(
              "\"{}\" is not a whole number from {} to {} (32k is 32000, 32K is 32768)", text,
              least, most);
        }
        text = std::to_string(*value);
        return std::string();
      },
      fmt::format("INT in [{} - {}]", least, most));
}

}  // namespace refrain
