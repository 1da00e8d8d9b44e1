#pragma once
// Which requests come in: acceptable ones, while the engine admits any and they would not wait too
// long. It counts those that came in and have not ended, and knows when a drain is over. Any
// thread, but for what is said to be the engine's executor's.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "runtime/actor/executor.h"
#include "runtime/config/engine_config.h"
#include "runtime/engine/admission.h"
#include "runtime/engine/request_rules.h"

namespace refrain {

class RequestIntake {
 public:
  RequestIntake(const EngineConfig& config, const ModelConfig& model);  // both outlive it

  Status check(const GenerateRequest& request) const { return rules_.check(request); }
  // Refuses when every request would be refused now.
  Status accepting();
  // Accepts and numbers a request, or refuses it.
  Result<RequestId> accept(const GenerateRequest& request, TimePoint now);
  SequenceParams sequence_params(RequestId id, const GenerateRequest& request) const {
    return rules_.sequence_params(id, request);
  }
  AdmissionStats stats() const { return admission_.stats(); }

  // No request is accepted any more, with this error.
  void refuse_from_now_on(Error error);
  std::optional<Error> refusal() const;  // that error

  // On the engine's executor. It refuses from now on; `drained` is called when none is left.
  void drain(std::function<void()> drained);
  void gone(RequestId id);  // it has ended
  Admission& admission() { return admission_; }

 private:
  void tell_if_drained();

  const RequestRules rules_;
  Admission admission_;
  std::atomic<int64_t> unfinished_{0};  // those on their way to the engine's executor, too
  mutable std::mutex mutex_;
  std::optional<Error> refusal_;
  std::function<void()> drained_;  // the engine's executor's
};

}  // namespace refrain
