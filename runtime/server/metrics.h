#pragma once
// Prometheus metrics, named as vLLM's with the prefix refrain:. Counters of the engine are read
// from its statistics at scrape time; latencies are observed here. Any thread.

#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/engine/engine.h"

namespace refrain {

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  // New tokens of a choice arrived at `now`; `first`: the request's first.
  void observe_tokens(TimePoint begun, TimePoint last_token, TimePoint now, bool first);
  void observe_request(TimePoint begun, TimePoint now, int64_t prompt_tokens,
                       int64_t completion_tokens);
  void count_http(int status);
  void count_key_limit();  // refused because its key has as many requests as it may
  std::string render(const EngineStats& stats, const AdmissionStats& admission);  // exposition text

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refrain
