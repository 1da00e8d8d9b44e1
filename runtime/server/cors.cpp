#include "runtime/server/cors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "runtime/server/api_response.h"

namespace refrain {
namespace {

constexpr const char* kMaxAge = "600";  // seconds that a browser may remember a preflight
// Those that a page may always send (Fetch, section 2.2.2).
constexpr std::array<std::string_view, 4> kSafeHeaders = {"accept", "accept-language",
                                                          "content-language", "content-type"};

bool holds(const std::vector<std::string>& list, std::string_view item) {
  return std::ranges::find(list, item) != list.end();
}

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const std::string* find_header(const HttpRequest& request, const char* name) {
  const auto at = request.headers.find(name);
  return at == request.headers.end() ? nullptr : &at->second;
}

std::vector<std::string_view> split_names(std::string_view list) {
  std::vector<std::string_view> names;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view name = list.substr(0, comma);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (!name.empty()) names.push_back(name);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

}  // namespace

CorsPolicy::CorsPolicy(CorsConfig config)
    : config_(std::move(config)),
      all_origins_(holds(config_.allowed_origins, "*")),
      all_methods_(holds(config_.allowed_methods, "*")),
      all_headers_(holds(config_.allowed_headers, "*")) {}

bool CorsPolicy::allows(const std::string& origin) const {
  return all_origins_ || holds(config_.allowed_origins, origin);
}

HttpHeaders CorsPolicy::answer_headers(const HttpRequest& request) const {
  if (config_.allowed_origins.empty()) return {};
  // With credentials browsers want the origin itself, not "*".
  const bool any = all_origins_ && !config_.allow_credentials;
  HttpHeaders headers;
  if (!any) headers.emplace_back("Vary", "Origin");
  const std::string* origin = find_header(request, "origin");
  if (origin == nullptr || !allows(*origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : *origin);
  if (config_.allow_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  return headers;
}

std::optional<std::string> CorsPolicy::objection(const HttpRequest& request) const {
  if (!allows(*find_header(request, "origin"))) return "this origin is not among --allowed-origins";
  const std::string& method = *find_header(request, "access-control-request-method");
  if (!all_methods_ && !holds(config_.allowed_methods, method))
    return "this method is not among --allowed-methods";
  const std::string* asked = find_header(request, "access-control-request-headers");
  if (all_headers_ || asked == nullptr) return std::nullopt;
  for (const std::string_view name : split_names(*asked)) {
    const auto same = [&](std::string_view known) { return same_name(known, name); };
    if (std::ranges::none_of(kSafeHeaders, same) &&
        std::ranges::none_of(config_.allowed_headers, same))
      return fmt::format("the header {} is not among --allowed-headers", name);
  }
  return std::nullopt;
}

std::optional<HttpReply> CorsPolicy::preflight(const HttpRequest& request) const {
  const std::string* method = find_header(request, "access-control-request-method");
  if (config_.allowed_origins.empty() || request.method != "OPTIONS" || method == nullptr ||
      find_header(request, "origin") == nullptr) {
    return std::nullopt;
  }
  HttpReply reply;
  if (const auto reason = objection(request)) {
    reply.status = 403;
    reply.body = error_body(403, *reason);
    return reply;
  }
  reply.status = 204;
  reply.content_type.clear();
  // What was asked for is allowed; the browser asks again for anything else.
  reply.headers = {{"Access-Control-Allow-Methods", *method}, {"Access-Control-Max-Age", kMaxAge}};
  if (const std::string* asked = find_header(request, "access-control-request-headers"))
    reply.headers.emplace_back("Access-Control-Allow-Headers", *asked);
  return reply;
}

}  // namespace refrain
