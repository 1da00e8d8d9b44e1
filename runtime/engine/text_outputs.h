#pragma once
// The output side within this process: one output processor for each output executor, each request
// on one of them.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/engine/output_side.h"

namespace refrain {

class TextOutputs final : public OutputSide {
 public:
  // `stopped` and `caught_up` are called on an output executor.
  TextOutputs(const std::vector<std::shared_ptr<Executor>>& executors,
              const std::shared_ptr<const text::Tokenizer>& tokenizer,
              const std::function<void(RequestId)>& stopped, std::function<void()> caught_up);

  // `thread` is taken modulo the number of executors.
  void open(size_t thread, RequestId id, int64_t prompt_tokens, SamplingParams sampling,
            OutputSink sink) override;
  void add(size_t thread, TokenArrival arrival) override;
  void hand_over() override;
  void end(size_t thread, RequestId id, FinishReason reason, std::optional<Error> error) override;
  bool full() override;  // over all executors

 private:
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

MakeOutputs text_outputs(std::vector<std::shared_ptr<Executor>> executors,
                         std::shared_ptr<const text::Tokenizer> tokenizer);

}  // namespace refrain
