#pragma once
// Prometheus metrics, named as vLLM's with the prefix refrain:. Counters of the engine are read
// from its statistics at scrape time; latencies are observed here. Any thread.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/engine/engine.h"

namespace refrain {

// A request that has ended well. `scheduled` and the tokens are those of its first choice to begin.
struct RequestTimes {
  TimePoint begun{}, ended{};
  std::optional<TimePoint> scheduled = {}, first_token = {};  // none: the model pools
  TimePoint last_token{};
  int64_t longest_answer = 0;  // tokens, of its choices
};

// What /metrics says of the cache whose blocks it counts.
std::map<std::string, std::string> cache_labels(const EngineConfig& config);

class Metrics {
 public:
  // `cache`: labels of refrain:cache_config_info.
  explicit Metrics(const std::string& model_name, std::map<std::string, std::string> cache = {});
  ~Metrics();

  // New tokens of a choice arrived at `now`; `first`: the request's first.
  void observe_tokens(TimePoint begun, TimePoint last_token, TimePoint now, bool first);
  void observe_request(const RequestTimes& times, int64_t prompt_tokens, int64_t completion_tokens);
  void count_http(int status);
  void count_key_limit();  // refused because its key has as many requests as it may
  std::string render(const EngineStats& stats, const AdmissionStats& admission);  // exposition text

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refrain
