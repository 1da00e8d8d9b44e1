#include "runtime/server/http_feed.h"

#include <algorithm>

namespace refrain {

namespace net = boost::asio;
namespace http = boost::beast::http;

net::awaitable<HttpFeed::Error> HttpFeed::read(size_t most) {
  const size_t room = std::min(most, buffer_.max_size() - buffer_.size());
  if (room == 0) co_return http::error::buffer_overflow;
  const auto [error, bytes] = co_await stream_.read_some(buffer_.prepare(room));
  buffer_.commit(bytes);
  co_return error;
}

net::awaitable<HttpFeed::Error> HttpFeed::parse_some(HttpParser& parser) {
  Error error;
  while (true) {
    if (buffer_.size() > 0) {
      buffer_.consume(parser.put(buffer_.data(), error));
      if (error != http::error::need_more) co_return error;
    }
    error = co_await read(parser.is_header_done() ? kBodyBytes : kHeadBytes);
    if (error == net::error::eof) {
      if (!parser.got_some()) co_return http::error::end_of_stream;
      error = {};
      parser.put_eof(error);
      co_return error;
    }
    if (error) co_return error;
  }
}

void HttpFeed::release() {
  if (empty() && buffer_.capacity() > kHeadBytes) buffer_.shrink_to_fit();
}

}  // namespace refrain
