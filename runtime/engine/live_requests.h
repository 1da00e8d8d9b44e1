#pragma once
// The requests that have not ended, with what the engine knows of each, and the way of their tokens
// and ends to the output side. Owned by the engine, on its executor, but for open() and full().

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/engine_trace.h"
#include "runtime/engine/output_side.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

struct LiveRequest {
  static constexpr int32_t kNoGroup = -1;  // it waits in the engine's queue
  int32_t num_logprobs = -1;
  TokenDigest given;  // its prompt and the tokens its client was given
  size_t output_thread = 0;
  AdapterId adapter = 0;
  TimerId deadline = 0;      // 0: none
  int32_t group = kNoGroup;  // that has it
};

class LiveRequests {
 public:
  // `gone` hears of each that has ended, last. All outlive it; `trace` may be null.
  using Gone = std::function<void(RequestId, const LiveRequest&)>;
  LiveRequests(Executor& executor, RequestBoard& stats, EngineTrace* trace, Gone gone)
      : executor_(executor), stats_(stats), trace_(trace), gone_(std::move(gone)) {}
  void connect(std::unique_ptr<OutputSide> outputs) { outputs_ = std::move(outputs); }  // once

  // Any thread: where the outputs of an accepted request go, which enters later.
  void open(RequestId id, GenerateRequest& request, OutputSink sink);

  void enter(RequestId id, size_t prompt_tokens, const LiveRequest& live);
  bool contains(RequestId id) const { return all_.contains(id); }
  LiveRequest& at(RequestId id) { return all_.at(id); }
  const LiveRequest& at(RequestId id) const { return all_.at(id); }
  std::vector<RequestId> ids_where(
      const std::function<bool(const LiveRequest&)>& wanted) const;  // oldest first

  // A step's tokens; requests that end with theirs are gone.
  void deliver(const ipc::StepResult& result, const std::vector<TokenEvent>& events);
  // It ends without a further token: the client is told.
  void end(RequestId id, FinishReason reason, std::optional<Error> error);
  void end_without_logit(RequestId id);  // the model had no finite one for it
  void end_for_grammar(RequestId id);    // a rank did not follow its grammar in time
  void end_all(const Error& error);
  // It has ended, and the client knows.
  void gone(RequestId id, FinishReason reason);
  bool outputs_full() { return outputs_->full(); }

 private:
  Executor& executor_;
  RequestBoard& stats_;
  EngineTrace* const trace_;
  const Gone gone_;
  std::unique_ptr<OutputSide> outputs_;
  std::unordered_map<RequestId, LiveRequest> all_;
};

}  // namespace refrain
