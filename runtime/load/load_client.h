#pragma once
// HTTP/1.1 clients for a load: streams of many requests on a few threads, each with its own
// connections, which are used again. Owned by the program's main thread; start() and get() are
// called there, the answers come on the client's threads.

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/load/load_figures.h"

namespace refrain {

struct BaseUrl {
  bool tls = false;
  std::string host, port;
  std::string path;  // before every route; empty or "/…"
};
// http[s]://HOST[:PORT][/PATH]; errors name --base-url.
Result<BaseUrl> parse_base_url(const std::string& url);

struct HttpAnswer {
  int status = 0;
  std::string body;
};

class LoadClient {
 public:
  struct Options {
    BaseUrl url;
    std::string api_key;
    Duration timeout = std::chrono::seconds(600);  // of a request, from its start to its last byte
    int threads = 2;
  };

  // Resolves the host; an error when there is none.
  static Result<std::unique_ptr<LoadClient>> create(Options options);
  ~LoadClient();

  // Waits for the answer. kUnavailable: nobody answers.
  Result<HttpAnswer> get(const std::string& route);

  struct Request {
    std::string route;
    std::function<std::string()> body;  // called once on the client's thread
    TimePoint due;                      // its times count from here
  };
  // `begin`: when the load began. `done` is called once, on one of the client's threads; the
  // tokens that were asked for are left for the caller to fill in.
  void start(Request request, TimePoint begin, std::function<void(LoadRecord)> done);

 private:
  class Thread;
  struct Shared;
  explicit LoadClient(Options options);

  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Thread>> threads_;
  size_t next_ = 0;
};

}  // namespace refrain
