#pragma once
// A server on a loopback port whose I/O runs on a thread of its own, and a client of raw bytes.
// Used by one test's thread.

#include <memory>
#include <string>
#include <thread>

#include "runtime/actor/io_context.h"
#include "runtime/server/http_server.h"

namespace refrain {

class ServerFixture {
 public:
  ServerFixture(HttpOptions options, HttpHandler handler);
  ~ServerFixture();
  int port() const { return server_->port(); }
  HttpServer& server() { return *server_; }

 private:
  IoContext io_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool send(const std::string& bytes);
  // Until `mark` has been received (kept for the next call: what follows it), or the end.
  std::string read_until(const std::string& mark);
  std::string read_all();  // until the server closes
  void close();

 private:
  bool receive();
  int socket_;
  std::string buffer_;
};

// "GET /path HTTP/1.1" with a Host and whatever more header lines are given.
std::string get(const std::string& path, const std::string& headers = {});
std::string post(const std::string& path, const std::string& body, const std::string& headers = {});

}  // namespace refrain
