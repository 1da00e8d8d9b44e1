#include "runtime/engine/text_outputs.h"

#include <utility>

#include "runtime/base/check.h"

namespace refrain {

TextOutputs::TextOutputs(const std::vector<std::shared_ptr<Executor>>& executors,
                         const std::shared_ptr<const text::Tokenizer>& tokenizer,
                         const std::function<void(RequestId)>& stopped,
                         std::function<void()> caught_up)
    : backlog_(std::make_shared<Backlog>()) {
  REFRAIN_CHECK(!executors.empty(), "an engine without an executor for its outputs");
  for (const auto& executor : executors)
    lanes_.push_back({executor, std::make_shared<OutputProcessor>(tokenizer, stopped), {}});
  backlog_->caught_up = std::move(caught_up);
}

void TextOutputs::open(size_t thread, RequestId id, int64_t prompt_tokens, SamplingParams sampling,
                       OutputSink sink) {
  const Lane& to = lane(thread);
  to.executor->post([outputs = to.outputs, id, prompt_tokens, sampling = std::move(sampling),
                     sink = std::move(sink)]() mutable {
    outputs->open(id, prompt_tokens, sampling, std::move(sink));
  });
}

void TextOutputs::add(size_t thread, TokenArrival arrival) {
  lane(thread).batch.push_back(std::move(arrival));
}

void TextOutputs::hand_over() {
  for (Lane& to : lanes_) {
    if (to.batch.empty()) continue;
    ++backlog_->batches;
    const size_t size = to.batch.size();
    to.executor->post(
        [outputs = to.outputs, backlog = backlog_, batch = std::move(to.batch)]() mutable {
          outputs->push(std::move(batch));
          if (--backlog->batches < kMostBatches && backlog->engine_waits.exchange(false))
            backlog->caught_up();
        });
    to.batch = {};
    to.batch.reserve(size);  // the next step's is as large
  }
}

void TextOutputs::end(size_t thread, RequestId id, FinishReason reason,
                      std::optional<Error> error) {
  const Lane& to = lane(thread);
  to.executor->post([outputs = to.outputs, id, reason, error = std::move(error)]() mutable {
    outputs->end(id, reason, std::move(error));
  });
}

// A batch that ends between the two looks finds the flag and calls, or is seen by the second one.
bool TextOutputs::full() {
  if (backlog_->batches < kMostBatches) return false;
  backlog_->engine_waits = true;
  return backlog_->batches >= kMostBatches;
}

MakeOutputs text_outputs(std::vector<std::shared_ptr<Executor>> executors,
                         std::shared_ptr<const text::Tokenizer> tokenizer) {
  return [executors = std::move(executors), tokenizer = std::move(tokenizer)](
             const std::function<void(RequestId)>& stopped, std::function<void()> caught_up) {
    return std::make_unique<TextOutputs>(executors, tokenizer, stopped, std::move(caught_up));
  };
}

}  // namespace refrain
