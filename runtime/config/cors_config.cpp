#include "runtime/config/cors_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "runtime/base/json.h"

namespace refrain {
namespace {

// As browsers send it: "https://host:port", no path, no slash at the end.
bool is_origin(std::string_view text) {
  if (text == "*" || text == "null") return true;
  const size_t mark = text.find("://");
  if (mark == 0 || mark == std::string_view::npos) return false;
  const std::string_view host = text.substr(mark + 3);
  return !host.empty() && host.find_first_of("/?#@*") == std::string_view::npos;
}

// RFC 9110: the name of a method or of a field.
bool is_token(std::string_view text) {
  constexpr std::string_view kMore = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](unsigned char c) {
    return (c < 0x80 && std::isalnum(c)) || kMore.find(static_cast<char>(c)) != kMore.npos;
  });
}

void add_list(CLI::App& app, const std::string& group, const std::string& name,
              std::vector<std::string>& list, bool (*good)(std::string_view),
              const std::string& needs, const std::string& description) {
  app.add_option_function<std::string>(
         name,
         [&list, name, good, needs](const std::string& text) {
           auto parsed = parse_string_list(name, text);
           if (!parsed) throw CLI::ValidationError(name, parsed.error().message);
           for (const std::string& item : *parsed) {
             if (good(item) &&
                 std::ranges::all_of(item, [](char c) { return c > 0x20 && c < 0x7f; }))
               continue;
             throw CLI::ValidationError(name, fmt::format("\"{}\" is not {}", item, needs));
           }
           list = std::move(*parsed);
         },
         description)
      ->type_name("JSON")
      ->group(group);
}

}  // namespace

Result<std::vector<std::string>> parse_string_list(const std::string& option,
                                                   const std::string& text) {
  std::vector<std::string> list;
  if (!text.starts_with('[')) {
    for (size_t at = 0; at < text.size();) {
      const size_t comma = std::min(text.find(',', at), text.size());
      list.push_back(text.substr(at, comma - at));
      at = comma + 1;
    }
    return list;
  }
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || !std::ranges::all_of(json, [](const auto& x) { return x.is_string(); })) {
    return fail_field(option, "a JSON list of strings is needed, not {}", text);
  }
  for (const auto& item : json) list.push_back(item.get<std::string>());
  return list;
}

void add_cors_options(CLI::App& app, CorsConfig& cors, const std::string& group) {
  add_list(
      app, group, "--allowed-origins", cors.allowed_origins, is_origin,
      "an origin: scheme://host[:port] without a path, or * for all",
      "Origins whose pages may use the server, e.g. [\"https://chat.example\"] (default: none)");
  app.add_flag("--allow-credentials", cors.allow_credentials,
               "Pages of --allowed-origins may send cookies and the like")
      ->group(group);
  add_list(app, group, "--allowed-methods", cors.allowed_methods, is_token, "a method",
           "Methods that they may use (default: [\"*\"], all)");
  add_list(app, group, "--allowed-headers", cors.allowed_headers, is_token, "a header's name",
           "Headers that they may send (default: [\"*\"], all)");
}

}  // namespace refrain
