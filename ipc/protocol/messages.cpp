#include "ipc/protocol/messages.h"

#include <array>

#include "runtime/base/check.h"

namespace refrain::ipc {

const char* to_string(ForwardMode mode) {
  switch (mode) {
    case ForwardMode::kIdle:
      return "IDLE";
    case ForwardMode::kExtend:
      return "EXTEND";
    case ForwardMode::kDecode:
      return "DECODE";
    case ForwardMode::kMixed:
      return "MIXED";
    case ForwardMode::kTargetVerify:
      return "TARGET_VERIFY";
    case ForwardMode::kDraftExtend:
      return "DRAFT_EXTEND";
    case ForwardMode::kDraftExtendV2:
      return "DRAFT_EXTEND_V2";
    case ForwardMode::kPrebuilt:
      return "PREBUILT";
    case ForwardMode::kSplitPrefill:
      return "SPLIT_PREFILL";
    case ForwardMode::kDllmExtend:
      return "DLLM_EXTEND";
  }
  check_failed(__FILE__, __LINE__, "known ForwardMode", std::to_string(static_cast<int>(mode)));
}

const char* to_string(RuntimeMode mode) {
  switch (mode) {
    case RuntimeMode::kNone:
      return "NONE";
    case RuntimeMode::kPiecewise:
      return "PIECEWISE";
    case RuntimeMode::kFull:
      return "FULL";
  }
  check_failed(__FILE__, __LINE__, "known RuntimeMode", std::to_string(static_cast<int>(mode)));
}

const char* message_name(size_t index) {
  static constexpr std::array<const char*, std::variant_size_v<Message>> kNames = {
      "Hello", "Welcome",    "Refuse",    "Progress", "Loaded", "InitCache", "Ready",
      "Step",  "StepResult", "Heartbeat", "Shutdown", "Failed", "Position"};
  REFRAIN_CHECK(index < kNames.size(), "message index {}", index);
  return kNames[index];
}

}  // namespace refrain::ipc
