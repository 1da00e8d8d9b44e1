#pragma once
// The life of every step and request as a file in Chrome's trace format (--trace-file), which
// Perfetto and chrome://tracing show. A group's steps are one track; a request is a span from its
// acceptance to its end, with its phases in it: waiting, prefill (until its first token), decode.
// Owned by the engine, on its executor. What is written whenever nothing runs is whole but for a
// last "]".

#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/engine/request.h"

namespace refrain {

class EngineTrace {
 public:
  // A file that is there is kept as PATH.before: that of a coordinator before this one.
  static Result<std::unique_ptr<EngineTrace>> create(const std::string& path);
  ~EngineTrace();

  void accepted(RequestId id, size_t prompt_tokens, TimePoint now);
  // `runs` says whether a request is among those that run now in the group.
  void sent(int32_t group, const ipc::Step& step, TimePoint now,
            const std::function<bool(RequestId)>& runs);
  void answered(int32_t group, const ipc::StepResult& result, TimePoint now);
  void token(RequestId id, TimePoint now);
  void ended(RequestId id, FinishReason reason, TimePoint now);
  // The group's steps in flight are gone, and requests that it `had` wait again.
  void workers_lost(int32_t group, std::string_view why, TimePoint now,
                    const std::function<bool(RequestId)>& had);

 private:
  enum class Phase : uint8_t { kWaiting, kPrefill, kDecode };
  struct Request {
    Phase phase = Phase::kWaiting;
    int64_t output_tokens = 0;
  };
  struct Sent {
    StepId step = 0;
    size_t rows = 0;
    TimePoint at;
  };
  struct Steps {
    int thread = 0;         // its track
    std::deque<Sent> sent;  // in flight
    TimePoint last_answer{};
  };
  explicit EngineTrace(std::FILE* file);
  static const char* name(Phase phase);
  void name_track(int thread, const std::string& name);
  Steps& steps_of(int32_t group);
  void write(const std::string& event);
  void begin(RequestId id, std::string_view name, TimePoint now, const std::string& arguments = "");
  void end(RequestId id, std::string_view name, TimePoint now, const std::string& arguments = "");
  void enter(RequestId id, Request& request, Phase phase, TimePoint now);

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool first_ = true;
  std::unordered_map<RequestId, Request> requests_;
  std::map<int32_t, Steps> steps_;  // by group
};

}  // namespace refrain
