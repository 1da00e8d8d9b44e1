#pragma once
// Brings a connection's bytes to Beast's parser (private to runtime/server): in place of Beast's
// own reading operations, whose templates are slow to compile. On the connection's thread.

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>

#include "runtime/net/http_stream.h"
#include "runtime/server/http_body.h"

namespace refrain {

using HttpParser = boost::beast::http::request_parser<ArrivingBody>;

class HttpFeed {
 public:
  using Error = boost::system::error_code;
  static constexpr size_t kBodyBytes = size_t{64} << 10;  // of one read
  static constexpr size_t kHeadBytes = size_t{4} << 10;

  // `most`: bytes that may wait to be parsed. The stream outlives it.
  HttpFeed(HttpStream& stream, size_t most) : stream_(stream), buffer_(most) {}

  bool empty() const { return buffer_.size() == 0; }
  boost::asio::awaitable<Error> read(size_t most);  // once
  // Until the parser has got on by a step: the header, or a part of the body.
  boost::asio::awaitable<Error> parse_some(HttpParser& parser);
  void release();  // memory that a large body took, if nothing waits

 private:
  HttpStream& stream_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace refrain
