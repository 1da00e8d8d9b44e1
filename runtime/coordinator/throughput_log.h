#pragma once
// A line of throughput every ten seconds under load, in vLLM's words. On its strand.

#include <memory>
#include <string>

#include "runtime/actor/executor.h"
#include "runtime/engine/engine.h"

namespace refrain {

// What happened between two readings of the engine's statistics; empty when nothing did and nothing
// runs.
std::string throughput_line(const EngineStats& before, const EngineStats& now, double seconds);

class ThroughputLog {
 public:
  ThroughputLog(Engine& engine, std::shared_ptr<Executor> strand);

 private:
  void wait();

  Engine& engine_;
  std::shared_ptr<Executor> strand_;
  EngineStats before_;
  TimePoint at_;
};

}  // namespace refrain
