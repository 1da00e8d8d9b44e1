#pragma once
// HTTP/1.1 on Boost.Beast behind a narrow door: requests in, responses (whole or streamed) out. It
// knows nothing of the API. Limits are enforced before a body is buffered. A connection
// belongs to one of the I/O threads, where the handler runs, on several at once; an HttpExchange
// may be used from any thread, and calls made on its own take no way round.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace refrain {

class IoContext;

struct HttpRequest {
  std::string method;  // "GET", "POST", …
  std::string path;    // decoded path, without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  // The body's share of max_body_bytes_in_all; let go of it when the body is parsed.
  std::shared_ptr<void> body_charge;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

// One request's answer: either reply(), or begin_stream(), write()…, end_stream(). What comes after
// the end, or after the client left, is ignored.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void reply(HttpReply reply) = 0;
  void reply(int status, std::string content_type, std::string body, HttpHeaders headers = {}) {
    reply({status, std::move(content_type), std::move(body), std::move(headers)});
  }
  virtual void begin_stream(int status, std::string content_type, HttpHeaders headers = {}) = 0;
  virtual void write(std::string chunk) = 0;
  virtual void end_stream() = 0;
  // Called once if the client leaves, or is cut off as a slow reader, before the answer ended.
  virtual void on_disconnect(std::function<void()> handler) = 0;
  // Called on the connection's thread whenever nothing has been written for so long, until the
  // answer ends.
  virtual void on_idle(Duration after, std::function<void()> handler) = 0;
  virtual size_t io_thread() const = 0;  // its connection's, among those of the server
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_header_fields = 100;
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_buffered_bytes = size_t{1} << 20;     // of a stream, beside its largest chunk
  size_t max_body_bytes_in_all = size_t{1} << 30;  // that are here and not parsed: BodyBytes
  int max_connections = 20000;                     // less if descriptors are fewer
  Duration header_timeout = std::chrono::seconds(10);
  Duration body_timeout = std::chrono::seconds(60);
  Duration idle_timeout = std::chrono::seconds(75);
  Duration write_timeout = std::chrono::seconds(30);
  std::string tls_certificate_file;  // PEM, with tls_key_file: TLS only
  std::string tls_key_file;
  // Looks at a request before its body is read (path, query and headers are there); what it
  // returns is the answer, and the body stays unread. The handler checks again. May be null.
  std::function<std::optional<HttpReply>(const HttpRequest&)> check_head;
  // Whose bytes a request's body is; requests of one owner share them. Null: of one for all.
  std::function<std::string(const HttpRequest&)> owner_of;
  // Headers that every answer to a request carries besides, the server's own errors too. May be
  // null.
  std::function<HttpHeaders(const HttpRequest&)> answer_headers;
  // Body (JSON) of the errors that the server answers by itself: 400, 413, 431, 500, 503.
  std::function<std::string(int status, const std::string& message)> error_body;
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)>;

class HttpServer {
 public:
  // Binds and begins to accept; connections are spread over the contexts, each of which one thread
  // runs. An address that cannot be bound, a certificate or a key that is none are errors that name
  // the option.
  static Result<std::unique_ptr<HttpServer>> listen(const std::vector<IoContext*>& threads,
                                                    HttpOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  virtual int connections() const = 0;
  virtual int answering() const = 0;  // requests whose answer is not out yet
  virtual void stop_accepting() = 0;  // connections close after the answer they are in
  virtual void close() = 0;           // and now
};

}  // namespace refrain
