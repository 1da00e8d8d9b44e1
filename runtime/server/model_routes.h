#pragma once
// The routes that tell of the model and its adapters: all of them, and one by its name. Any thread.

#include <cstdint>
#include <string>

#include "runtime/server/replies.h"

namespace refrain {

class ModelRoutes {
 public:
  ModelRoutes(const Engine& engine, Replies replies);

  void add_to(RouteTable& table);

 private:
  void get_all(HttpRequest& request, const Exchange& exchange);
  void get_one(HttpRequest& request, const Exchange& exchange);
  Json model_json(const std::string& name) const;
  Json adapter_json(const AdapterSource& adapter) const;

  const Engine& engine_;
  const Replies replies_;
  const int64_t started_;  // seconds since the epoch
};

}  // namespace refrain
