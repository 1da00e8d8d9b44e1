#include "runtime/server/request_head.h"

#include <algorithm>
#include <cctype>

namespace refrain {

std::string header_of(const HttpRequest& request, const char* name) {
  const auto at = request.headers.find(name);
  return at == request.headers.end() ? std::string() : at->second;
}

bool has_body(const HttpRequest& request) {
  const std::string length = header_of(request, "content-length");
  return !header_of(request, "transfer-encoding").empty() || (!length.empty() && length != "0");
}

bool has_json_type(const HttpRequest& request) {
  std::string type = header_of(request, "content-type");
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type == "application/json";
}

std::shared_ptr<ApiKey> key_of(const ApiKeys& keys, const HttpRequest& request) {
  const std::string bearer = header_of(request, "authorization");
  // Anthropic's clients have the key in a header of its own.
  return keys.find(bearer.empty() ? "Bearer " + header_of(request, "x-api-key") : bearer);
}

Result<std::string> request_id(const HttpRequest& request) {
  const auto found = request.headers.find("x-request-id");
  if (found == request.headers.end()) return std::string();
  const bool plain =
      std::ranges::all_of(found->second, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!plain || found->second.size() > 128)
    return fail(ErrorCode::kInvalidArgument,
                "the header X-Request-Id must be at most 128 visible ASCII characters");
  return found->second;
}

}  // namespace refrain
