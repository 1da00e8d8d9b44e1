#include "runtime/server/http_body.h"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/field.hpp>

namespace refrain {

bool BodyBytes::take(const std::string& owner, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = of_owner_.find(owner);
  const size_t has = at == of_owner_.end() ? 0 : at->second;
  if (taken_ + bytes > most_ || has + bytes > most_ - taken_ - bytes) return false;
  if (bytes == 0) return true;
  of_owner_[owner] += bytes;
  taken_ += bytes;
  return true;
}

void BodyBytes::give_back(const std::string& owner, size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  taken_ -= bytes;
  const auto at = of_owner_.find(owner);
  at->second -= bytes;
  if (at->second == 0) of_owner_.erase(at);
}

std::optional<std::string> framing_error(const RequestHead& head) {
  namespace http = boost::beast::http;
  const auto hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return "a request of HTTP/1.1 has one Host field";
  }
  const auto codings = head.count(http::field::transfer_encoding);
  if (codings == 0) return std::nullopt;
  if (head.version() < 11) return "Transfer-Encoding needs HTTP/1.1";
  if (head.count(http::field::content_length) > 0) {
    return "a request has Transfer-Encoding or Content-Length, not both";
  }
  if (codings > 1 || !boost::beast::iequals(head[http::field::transfer_encoding], "chunked")) {
    return "the only Transfer-Encoding taken is chunked";
  }
  return std::nullopt;
}

}  // namespace refrain
