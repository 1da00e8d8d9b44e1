#include "runtime/config/option_values.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

// "OWNER/NAME" as Hugging Face writes it.
bool is_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string::npos && text.front() != '.' &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
         });
}

std::filesystem::path hub_cache() {
  const auto from = [](const char* name, const char* below) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr || *value == 0 ? std::filesystem::path()
                                           : std::filesystem::path(value) / below;
  };
  for (const auto& path : {from("HF_HUB_CACHE", ""), from("HF_HOME", "hub"),
                           from("XDG_CACHE_HOME", "huggingface/hub")}) {
    if (!path.empty()) return path;
  }
  return from("HOME", ".cache/huggingface/hub");
}

// The revision that `main` names, else the only one there is.
std::filesystem::path snapshot_in(const std::filesystem::path& model) {
  std::string revision;
  std::ifstream(model / "refs/main") >> revision;
  std::error_code missing;
  if (!revision.empty() && std::filesystem::is_directory(model / "snapshots" / revision, missing)) {
    return model / "snapshots" / revision;
  }
  std::filesystem::path only;
  for (const auto& entry : std::filesystem::directory_iterator(model / "snapshots", missing)) {
    if (!only.empty()) return {};
    only = entry.path();
  }
  return only;
}

}  // namespace

CLI::Validator model_directory() {
  return CLI::Validator(
      [](std::string& text) {
        std::error_code missing;
        if (!is_hub_name(text) || std::filesystem::exists(text, missing)) return std::string();
        std::string folder = "models--" + text;
        folder.replace(folder.find('/'), 1, "--");
        const std::filesystem::path cache = hub_cache();
        const std::filesystem::path found = snapshot_in(cache / folder);
        if (found.empty()) {
          return fmt::format(
              "{0} is no directory, and there is no model of that name in the Hugging Face cache "
              "{1}. What to do: hf download {0}",
              text, cache.string());
        }
        text = found.string();
        return std::string();
      },
      "");
}

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
