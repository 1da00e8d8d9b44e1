#pragma once
// The HTTP server of a process that has an engine, in this process or behind a socket: API, keys,
// listening address. Owned by main's thread; requests are handled on the I/O threads.

#include <functional>
#include <memory>
#include <string>

#include "runtime/actor/io_threads.h"
#include "runtime/server/api_server.h"
#include "runtime/supervise/group_report.h"

namespace refrain {

// Half of the cores for what turns tokens into answers, half for what reads requests; the engine
// itself needs less than one.
int half_of_the_cores();

class HttpSide {
 public:
  // Binds the address of the engine's configuration; requests come when `threads` run. All outlive
  // it. `board_fd`: counters of a supervisor; -1: none.
  static Result<std::unique_ptr<HttpSide>> listen(Engine& engine, const TextSide& text,
                                                  IoThreads& threads, int board_fd);

  const std::string& url() const { return url_; }
  const SupervisorBoard& board() const { return board_; }  // empty where there is none
  ApiServer& api() { return *api_; }
  HttpServer& server() { return *server_; }
  // POST /drain: tells the supervisor `parent`, so that it ends and starts no other process;
  // without one calls `drain`, on any thread.
  void drain_by(int64_t parent, std::function<void()> drain);

 private:
  HttpSide() = default;
  SupervisorBoard board_;
  std::string url_;
  std::unique_ptr<ApiServer> api_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace refrain
