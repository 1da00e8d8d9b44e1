#include "runtime/coordinator/http_side.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/processors.h"
#include "runtime/server/api_response.h"

namespace refrain {
namespace {

std::string incident_metrics(const SupervisorBoard::Counts& counts) {
  return fmt::format(
      "# HELP refrain:incidents_total Coordinators and worker groups lost, audits with "
      "differences\n"
      "# TYPE refrain:incidents_total counter\n"
      "refrain:incidents_total {}\n"
      "# HELP refrain:incidents_unwritten_total Incident records that could not be written\n"
      "# TYPE refrain:incidents_unwritten_total counter\n"
      "refrain:incidents_unwritten_total {}\n",
      counts.incidents, counts.unwritten);
}

HttpOptions http_options(const EngineConfig& config, ApiServer& api) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port;
  options.tls_certificate_file = config.ssl_certfile;
  options.tls_key_file = config.ssl_keyfile;
  options.error_body = error_body;
  options.check_head = [&api](const HttpRequest& request) { return api.check_head(request); };
  options.owner_of = [&api](const HttpRequest& request) { return api.owner_of(request); };
  options.answer_headers = [&api](const HttpRequest& request) {
    return api.answer_headers(request);
  };
  return options;
}

}  // namespace

int half_of_the_cores() {
  constexpr int kMost = 16;
  return std::clamp(usable_processors() / 2, 2, kMost);
}

Result<std::unique_ptr<HttpSide>> HttpSide::listen(Engine& engine, const TextSide& text,
                                                   IoThreads& threads, int board_fd) {
  const EngineConfig& config = engine.config();
  auto side = std::unique_ptr<HttpSide>(new HttpSide());
  REFRAIN_ASSIGN_OR_RETURN(ApiKeys keys, ApiKeys::load(config));
  side->api_ =
      std::make_unique<ApiServer>(engine, text, std::move(keys), static_cast<int>(threads.size()));
  ApiServer& api = *side->api_;
  if (board_fd >= 0) {
    REFRAIN_ASSIGN_OR_RETURN(side->board_, SupervisorBoard::map(UniqueFd(board_fd)));
    api.add_metrics([&board = side->board_] { return incident_metrics(board.counts()); });
  }
  std::vector<IoContext*> contexts;
  for (size_t i = 0; i < threads.size(); ++i) contexts.push_back(&threads.context(i));
  REFRAIN_ASSIGN_OR_RETURN(
      side->server_, HttpServer::listen(contexts, http_options(config, api),
                                        [&api](HttpRequest request,
                                               const std::shared_ptr<HttpExchange>& exchange) {
                                          api.handle(std::move(request), exchange);
                                        }));
  side->url_ = fmt::format("{}://{}:{}", config.ssl_certfile.empty() ? "http" : "https",
                           config.host, side->server_->port());
  return side;
}

void HttpSide::drain_by(int64_t parent, std::function<void()> drain) {
  api_->on_drain([parent, drain = std::move(drain)] {
    if (parent > 0 && ::getppid() == parent) {
      ::kill(static_cast<pid_t>(parent), SIGTERM);
    } else {
      drain();
    }
  });
}

}  // namespace refrain
