#include "runtime/server/http_outbox.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cerrno>
#include <utility>

namespace refrain {
namespace {

namespace http = boost::beast::http;
constexpr size_t kJoined = 16384;  // parts are put together up to so many bytes

void append_field(std::string& text, std::string_view name, std::string_view value) {
  text.append(name).append(": ").append(value).append("\r\n");
}

// `whole`: the body's length is known, else it comes in chunks.
std::string header_text(const HttpAnswerForm& form, const HttpReply& reply, bool whole) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(reply.status));
  std::string text = fmt::format("HTTP/{}.{} {} {}\r\n", form.version / 10, form.version % 10,
                                 reply.status, std::string_view(reason.data(), reason.size()));
  if (!reply.content_type.empty()) append_field(text, "Content-Type", reply.content_type);
  for (const auto& [name, value] : reply.headers) append_field(text, name, value);
  const bool kept_by_default = form.version >= 11;
  if (form.keep_alive != kept_by_default)
    append_field(text, "Connection", form.keep_alive ? "keep-alive" : "close");
  if (whole && reply.status != 204) {  // RFC 9110: a 204 has none
    append_field(text, "Content-Length", fmt::format("{}", reply.body.size()));
  } else if (!whole && form.version >= 11) {
    append_field(text, "Transfer-Encoding", "chunked");
  }
  return text += "\r\n";
}

}  // namespace

void HttpOutbox::append(std::string_view bytes) {
  bytes_ += bytes.size();
  if (waiting_.size() <= being_written_ || waiting_.back().size() + bytes.size() > kJoined)
    waiting_.emplace_back();
  waiting_.back().append(bytes);
}

void HttpOutbox::push(std::string bytes) {
  bytes_ += bytes.size();
  waiting_.push_back(std::move(bytes));
}

void HttpOutbox::proceed() { append("HTTP/1.1 100 Continue\r\n\r\n"); }

void HttpOutbox::reply(const HttpAnswerForm& form, HttpReply reply) {
  append(header_text(form, reply, true));
  if (form.head_only || reply.body.empty()) return;
  if (reply.body.size() < kJoined) return append(reply.body);
  push(std::move(reply.body));
}

void HttpOutbox::head(const HttpAnswerForm& form, const HttpReply& head) {
  append(header_text(form, head, false));
}

void HttpOutbox::chunk(const HttpAnswerForm& form, std::string_view body) {
  if (form.version < 11) return append(body);
  std::array<char, 24> size;
  const auto end = fmt::format_to_n(size.data(), size.size(), "{:x}\r\n", body.size()).out;
  append({size.data(), static_cast<size_t>(end - size.data())});
  append(body);
  append("\r\n");
}

void HttpOutbox::end(const HttpAnswerForm& form) {
  if (form.version >= 11) append("0\r\n\r\n");
}

HttpOutbox::Buffers HttpOutbox::begin_write() {
  Buffers buffers;
  being_written_ = std::min(waiting_.size(), kMostBuffers);
  for (size_t i = 0; i < being_written_; ++i) {
    const std::string_view rest = std::string_view(waiting_[i]).substr(i == 0 ? sent_of_first_ : 0);
    buffers.emplace_back(rest.data(), rest.size());
  }
  return buffers;
}

void HttpOutbox::consume(size_t bytes) {
  being_written_ = 0;
  bytes_ -= bytes;
  sent_of_first_ += bytes;
  while (!waiting_.empty() && sent_of_first_ >= waiting_.front().size()) {
    sent_of_first_ -= waiting_.front().size();
    if (waiting_.size() == 1) {  // a stream's next chunk finds room that is there
      waiting_.front().clear();
      return;
    }
    waiting_.pop_front();
  }
}

void HttpOutbox::clear() {
  waiting_.clear();
  sent_of_first_ = being_written_ = bytes_ = 0;
}

bool HttpOutbox::write_now(int socket) {
  while (!empty()) {
    std::array<iovec, kMostBuffers> parts;
    size_t count = 0;
    for (const auto& buffer : begin_write())
      parts[count++] = {const_cast<void*>(buffer.data()), buffer.size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      consume(static_cast<size_t>(sent));
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

}  // namespace refrain
