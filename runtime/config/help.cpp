#include "runtime/config/help.h"

#include <fmt/format.h>

namespace refrain {
namespace {

// "INT:INT in [1 - 64]" -> "INT from 1 to 64", "TEXT:{auto,host}" -> "auto|host".
std::string value_of_option(const CLI::Option& option) {
  std::string name = option.get_type_name();
  if (name.starts_with(':')) name.erase(0, 1);
  if (const size_t set = name.find(":{"); set != std::string::npos && name.ends_with('}')) {
    name = name.substr(set + 2, name.size() - set - 3);
    std::ranges::replace(name, ',', '|');
    if (name.find("->") == std::string::npos) return name;
    std::string keys;  // "{a->b|c->c}": what may be written
    for (size_t at = 0; at < name.size();) {
      const size_t end = std::min(name.find('|', at), name.size());
      const std::string key = name.substr(at, name.find("->", at) - at);
      keys += (keys.empty() ? "" : "|") + key;
      at = end + 1;
    }
    return keys;
  }
  const size_t range = name.find(" in [");
  if (range == std::string::npos) return name;
  std::string limits = name.substr(range + 5);
  limits = limits.substr(0, limits.find(']'));
  if (const size_t between = limits.find(" - "); between != std::string::npos) {
    limits.replace(between, 3, " to ");
  }
  return fmt::format("{} from {}", name.substr(0, std::min(name.find(':'), range)), limits);
}

std::string default_of(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  return text == "[]" || text == "{}" ? "" : text;
}

std::string names_of(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ",-") + name;
  for (const std::string& name : option.get_lnames()) {
    names += (names.empty() ? "--" : ",--") + name;
  }
  return names.empty() ? option.get_name(true) : names;
}

// A table's cell.
std::string escaped(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '\\');
  }
  return text;
}

}  // namespace

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  return is_positional ? option->get_name(true) : names_of(*option);
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text;
  if (option->get_type_size() != 0) {
    text = " " + value_of_option(*option);
    if (option->get_expected_max() > 1) text += " ...";
    if (const std::string usual = default_of(*option); !usual.empty()) {
      text += fmt::format(" [{}]", usual);
    }
  }
  if (!option->get_envname().empty()) text += fmt::format(" (or {})", option->get_envname());
  if (option->get_required()) text += " REQUIRED";
  return text;
}

std::string options_page(const CLI::App& app) {
  std::string page = fmt::format("## {}\n\n{}\n", app.get_name(), app.get_description());
  for (const std::string& group : app.get_groups()) {
    std::string rows;
    if (group.empty()) continue;  // between programs, not for people
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group() != group || option->get_name() == "--help") continue;
      const std::string value = option->get_type_size() == 0 ? "" : " " + value_of_option(*option);
      const std::string usual = option->get_type_size() == 0 ? "" : default_of(*option);
      rows += fmt::format("| `{}`{} | {} | {} |\n", names_of(*option), escaped(value),
                          escaped(usual), escaped(option->get_description()));
    }
    if (rows.empty()) continue;
    page += fmt::format("\n### {}\n\n| option | default | what |\n| --- | --- | --- |\n{}", group,
                        rows);
  }
  return page;
}

}  // namespace refrain
