#pragma once
// The way from the engine to what makes answers of tokens: in this process (text_outputs.h), or in
// the one that has the clients (runtime/front). A step's tokens travel together. The engine's
// executor owns it but for open(); it says when the other side lags so far behind that no further
// step should be planned.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/engine/output_processor.h"

namespace refrain {

class OutputSide {
 public:
  virtual ~OutputSide() = default;

  // `thread`: GenerateRequest::output_thread, the same in every call for a request. Any thread.
  virtual void open(size_t thread, RequestId id, int64_t prompt_tokens, SamplingParams sampling,
                    OutputSink sink) = 0;
  // A token of the step whose batch goes out with the next hand_over().
  virtual void add(size_t thread, TokenArrival arrival) = 0;
  virtual void hand_over() = 0;
  // Behind every token handed over before.
  virtual void end(size_t thread, RequestId id, FinishReason reason,
                   std::optional<Error> error) = 0;
  // So many batches wait that steps would only make the queue longer; asking makes it tell when
  // that is over.
  virtual bool full() = 0;

  static constexpr int kMostBatches = 64;  // that wait
};

// `stopped` hears of requests that a stop string has ended, `caught_up` that full() is over.
using MakeOutputs = std::function<std::unique_ptr<OutputSide>(
    std::function<void(RequestId)> stopped, std::function<void()> caught_up)>;

}  // namespace refrain
