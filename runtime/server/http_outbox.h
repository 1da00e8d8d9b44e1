#pragma once
// The bytes of one connection that wait for its socket, framed as HTTP (private to runtime/server).
// Small parts are put together, and all that is ready leaves in one gathered write. On the
// connection's thread.

#include <array>
#include <boost/asio/buffer.hpp>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "runtime/server/http_server.h"

namespace refrain {

// What an answer's framing depends on.
struct HttpAnswerForm {
  unsigned version = 11;
  bool keep_alive = true;
  bool head_only = false;  // of a HEAD request
};

class HttpOutbox {
 public:
  static constexpr size_t kMostBuffers = 16;  // of one write
  using Buffers = std::vector<boost::asio::const_buffer>;

  void proceed();  // the body may come: 100 Continue
  void reply(const HttpAnswerForm& form, HttpReply reply);
  // A stream's head, chunks and end. For clients of HTTP/1.0 the end is that of the connection.
  void head(const HttpAnswerForm& form, const HttpReply& head);
  void chunk(const HttpAnswerForm& form, std::string_view body);
  void end(const HttpAnswerForm& form);

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }
  // The first of what waits; it stays where it is until consume() or clear().
  Buffers begin_write();
  void consume(size_t bytes);
  void clear();
  // Writes what the socket takes without waiting; false when the connection is broken.
  bool write_now(int socket);

 private:
  void append(std::string_view bytes);
  void push(std::string bytes);

  std::deque<std::string> waiting_;
  size_t sent_of_first_ = 0;
  size_t being_written_ = 0;  // the first strings: nothing may be appended to them
  size_t bytes_ = 0;
};

}  // namespace refrain
