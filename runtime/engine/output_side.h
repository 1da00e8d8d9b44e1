#pragma once
// The way from the engine to the output processors: one for each output executor, each request on
// one of them. A step's tokens travel together. The engine's executor owns it but for open(); it
// says when the output side lags so far behind that no further step should be planned.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/engine/output_processor.h"

namespace refrain {

class OutputSide {
 public:
  // `stopped` hears of requests that a stop string has ended, `caught_up` that full() is over: both
  // on an output executor.
  OutputSide(const std::vector<std::shared_ptr<Executor>>& executors,
             const std::shared_ptr<const text::Tokenizer>& tokenizer,
             const std::function<void(RequestId)>& stopped, std::function<void()> caught_up);

  // `thread` is taken modulo the number of executors. Any thread.
  void open(size_t thread, RequestId id, int64_t prompt_tokens, SamplingParams sampling,
            OutputSink sink);

  // A token of the step whose batch goes out with the next hand_over().
  void add(size_t thread, TokenArrival arrival);
  void hand_over();
  // Behind every token handed over before.
  void end(size_t thread, RequestId id, FinishReason reason, std::optional<Error> error);
  // So many batches wait on some executor that steps would only make the queue longer; asking makes
  // `caught_up` be called.
  bool full();

 private:
  static constexpr int kMostBatches = 64;  // that wait, over all executors

  struct Lane {
    std::shared_ptr<Executor> executor;
    std::shared_ptr<OutputProcessor> outputs;  // touched on the executor only
    std::vector<TokenArrival> batch;
  };
  struct Backlog {
    std::atomic<int> batches{0};
    std::atomic<bool> engine_waits{false};
    std::function<void()> caught_up;
  };
  Lane& lane(size_t thread) { return lanes_[thread % lanes_.size()]; }

  std::vector<Lane> lanes_;
  std::shared_ptr<Backlog> backlog_;  // shared with batches on their way
};

}  // namespace refrain
