#pragma once
// Which routes there are, as data. Groups of routes (…_routes.h) add theirs when the server starts;
// read by any thread after that.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/server/http_server.h"

namespace refrain {

using Exchange = std::shared_ptr<HttpExchange>;

enum class RouteAccess : uint8_t {
  kKey,       // clients, with a key where there are any
  kOpen,      // everybody
  kOperator,  // who has the --control-key
};

struct Route {
  const char* method;
  std::function<void(HttpRequest&, const Exchange&)> handle;
  RouteAccess access = RouteAccess::kKey;
  const char* api = nullptr;  // that takes the engine's time, as vLLM calls it
  bool pools = false;         // of models that pool
};

class RouteTable {
 public:
  void add(const std::string& path, Route route) { routes_.emplace(path, std::move(route)); }
  // Of all paths that begin so and have no route of their own.
  void add_below(std::string begin, Route route) {
    below_.emplace_back(std::move(begin), std::move(route));
  }

  const Route* find(const std::string& path) const;  // null: there is none
  // "GET /live", by path; without those below others.
  std::vector<std::string> list() const;

 private:
  std::map<std::string, Route> routes_;
  std::vector<std::pair<std::string, Route>> below_;
};

}  // namespace refrain
