#include "runtime/server/http_body.h"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/field.hpp>

namespace refrain {

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
