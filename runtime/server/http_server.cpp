#include "runtime/server/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <limits>
#include <set>

#include "runtime/actor/io_context.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/server/http_session.h"

namespace refrain {
namespace {

namespace net = boost::asio;
using tcp = net::ip::tcp;

// What descriptors allow: as many as the system gives this process, less what the rest needs.
int most_connections() {
  constexpr rlim_t kOthers = 128;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int>::max();
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t left = std::max(limit.rlim_cur, 2 * kOthers) - kOthers;
  return static_cast<int>(std::min<rlim_t>(left, std::numeric_limits<int>::max()));
}

class BeastServer final : public HttpServer {
 public:
  BeastServer(std::vector<net::io_context*> threads, tcp::acceptor acceptor,
              std::shared_ptr<HttpShared> shared)
      : listener_(std::make_shared<Listener>(Listener{std::move(acceptor),
                                                      std::move(shared),
                                                      {},
                                                      net::steady_timer(*threads.front()),
                                                      std::move(threads)})) {}
  ~BeastServer() override { close(); }

  void start() {
    net::co_spawn(listener_->acceptor.get_executor(), accept(listener_), net::detached);
  }
  int port() const override { return listener_->acceptor.local_endpoint().port(); }
  int connections() const override { return listener_->shared->connections; }
  int answering() const override { return listener_->shared->answering; }

  void stop_accepting() override {
    listener_->shared->stopping = true;
    net::post(listener_->acceptor.get_executor(), [listener = listener_] {
      boost::system::error_code ignored;  // closing twice is no failure
      listener->acceptor.close(ignored);
    });
  }

  void close() override {
    stop_accepting();
    net::post(listener_->acceptor.get_executor(), [listener = listener_] {
      for (const auto& weak : listener->sessions) {
        if (auto session = weak.lock()) {
          net::post(session->executor(), [session] { session->close(); });
        }
      }
    });
  }

 private:
  struct Listener {
    tcp::acceptor acceptor;
    std::shared_ptr<HttpShared> shared;
    std::set<std::weak_ptr<HttpSession>, std::owner_less<>> sessions;
    net::steady_timer pause;
    std::vector<net::io_context*> threads;  // the first one accepts
    size_t next = 0;                        // gets the next connection
  };

  // Now and then, so that an accept costs the same however many connections there are.
  static void forget_closed(Listener& listener) {
    const auto open = static_cast<size_t>(listener.shared->connections);
    if (listener.sessions.size() < 2 * open + 64) return;
    std::erase_if(listener.sessions, [](const auto& weak) { return weak.expired(); });
  }

  static net::awaitable<void> accept(std::shared_ptr<Listener> listener) {
    bool refused = false;
    while (listener->acceptor.is_open()) {
      const size_t thread = listener->next;
      net::io_context& io = *listener->threads[thread];
      auto [error, socket] = co_await listener->acceptor.async_accept(io, kAwait);
      if (error == net::error::operation_aborted) co_return;
      if (error) {  // out of descriptors, most likely: go on when some are free again
        if (!std::exchange(refused, true))
          log::warn("connections wait to be accepted: {}", error.message());
        listener->pause.expires_after(std::chrono::milliseconds(50));
        co_await listener->pause.async_wait(kAwait);
        continue;
      }
      if (std::exchange(refused, false)) log::info("connections are accepted again");
      if (listener->shared->connections >= listener->shared->options.max_connections) continue;
      forget_closed(*listener);
      listener->next = (thread + 1) % listener->threads.size();
      auto session = std::make_shared<HttpSession>(std::move(socket), listener->shared, io, thread);
      listener->sessions.insert(session);
      net::co_spawn(io, session->run(), [session](const std::exception_ptr& failure) {
        if (!failure) return;
        try {
          std::rethrow_exception(failure);
        } catch (const std::exception& error) {
          log::error("connection: {}", error.what());
        }
      });
    }
  }

  std::shared_ptr<Listener> listener_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const std::vector<IoContext*>& threads,
                                                       HttpOptions options, HttpHandler handler) {
  std::vector<net::io_context*> natives;
  natives.reserve(threads.size());
  for (IoContext* thread : threads) natives.push_back(&thread->native());
  REFRAIN_CHECK(!natives.empty(), "an HTTP server without a thread");
  const std::string where = fmt::format("{}:{}", options.host, options.port);
  auto shared = std::make_shared<HttpShared>();
  if (options.tls_certificate_file.empty() != options.tls_key_file.empty()) {
    return fail_field("--ssl-keyfile", "--ssl-certfile and --ssl-keyfile need each other");
  }
  if (!options.tls_certificate_file.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(shared->tls,
                             make_tls_context(options.tls_certificate_file, options.tls_key_file));
  }
  options.max_connections = std::min(options.max_connections, most_connections());
  boost::system::error_code error;
  const auto address =
      net::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) {
    return fail_field("--host", "--host {} is not an IP address", options.host);
  }
  tcp::acceptor acceptor(*natives.front());
  const tcp::endpoint endpoint(address, static_cast<unsigned short>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error) {
    return fail_field("--port", "cannot listen on {}: {}", where, error.message());
  }
  shared->body_bytes = std::make_shared<BodyBytes>(options.max_body_bytes_in_all);
  shared->options = std::move(options);
  shared->handler = std::move(handler);
  auto server =
      std::make_unique<BeastServer>(std::move(natives), std::move(acceptor), std::move(shared));
  server->start();
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace refrain
