#include "runtime/engine/request_intake.h"

#include <utility>

namespace refrain {

RequestIntake::RequestIntake(const EngineConfig& config, const ModelConfig& model)
    : rules_(config, model),
      admission_({int64_t{config.worker.max_num_seqs} * config.num_groups(), config.max_queue,
                  to_duration(config.max_queue_wait)}) {}

Status RequestIntake::accepting() {
  if (const auto refused = refusal()) return forward_error(*refused);
  return admission_.check();
}

Result<RequestId> RequestIntake::accept(const GenerateRequest& request, TimePoint now) {
  REFRAIN_RETURN_IF_ERROR(check(request));
  const std::lock_guard lock(mutex_);
  if (refusal_) return forward_error(*refusal_);
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = request.sampling.max_tokens;
  RequestId id = 0;
  if (request.admitted) {
    id = admission_.enter(length, max_tokens, request.max_queue_wait, now);
  } else {
    REFRAIN_ASSIGN_OR_RETURN(id, admission_.admit(length, max_tokens, request.max_queue_wait, now));
  }
  if (request.begun) admission_.started(id);
  ++unfinished_;  // under the lock, so that a drain that begins now knows of it
  return id;
}

void RequestIntake::refuse_from_now_on(Error error) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(error);
}

std::optional<Error> RequestIntake::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void RequestIntake::drain(std::function<void()> drained) {
  refuse_from_now_on({ErrorCode::kUnavailable, "the server is shutting down", {}});
  drained_ = std::move(drained);
  tell_if_drained();
}

void RequestIntake::gone(RequestId id) {
  --unfinished_;
  admission_.gone(id);
  tell_if_drained();
}

void RequestIntake::tell_if_drained() {
  if (unfinished_ == 0 && drained_) std::exchange(drained_, nullptr)();
}

}  // namespace refrain
