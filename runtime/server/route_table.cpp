#include "runtime/server/route_table.h"

namespace refrain {

const Route* RouteTable::find(const std::string& path) const {
  if (const auto at = routes_.find(path); at != routes_.end()) return &at->second;
  for (const auto& [begin, route] : below_)
    if (path.starts_with(begin)) return &route;
  return nullptr;
}

std::vector<std::string> RouteTable::list() const {
  std::vector<std::string> all;
  for (const auto& [path, route] : routes_) all.push_back(std::string(route.method) + " " + path);
  return all;
}

}  // namespace refrain
