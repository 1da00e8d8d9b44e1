#pragma once
// Answers that are no streams, counted by their status. A value: what the engine calls later keeps
// one of its own, so that the server may be gone by then; the engine outlives all. Any thread.

#include <cstdint>
#include <memory>

#include "runtime/engine/engine.h"
#include "runtime/server/api_response.h"
#include "runtime/server/metrics.h"
#include "runtime/server/route_table.h"

namespace refrain {

// Since the epoch, as an answer's `created` tells it.
int64_t now_seconds();

class Replies {
 public:
  Replies(Engine& engine, std::shared_ptr<Metrics> metrics)
      : engine_(&engine), metrics_(std::move(metrics)) {}

  void send(const Exchange& exchange, HttpReply reply) const;
  void json(const Exchange& exchange, const Json& json, int status = 200) const;
  void error(const Exchange& exchange, const Error& error) const;

  const std::shared_ptr<Metrics>& metrics() const { return metrics_; }

 private:
  Engine* engine_;
  std::shared_ptr<Metrics> metrics_;
};

}  // namespace refrain
