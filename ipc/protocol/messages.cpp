#include "ipc/protocol/messages.h"

#include <array>

#include "runtime/base/check.h"

namespace refrain::ipc {

int64_t num_tokens(const Step& step) {
  size_t tokens = 0;
  for (const Run& run : step.runs) tokens += run.rows.token_ids.size();
  return static_cast<int64_t>(tokens);
}

int64_t num_rows(const Step& step) {
  size_t rows = 0;
  for (const Run& run : step.runs) rows += run.rows.slot.size();
  return static_cast<int64_t>(rows);
}

StepSize size_of(const Step& step) {
  StepSize size;
  size.cascade = step.cascade;
  size.has_lora = step.has_lora;
  size.allowed_modes = step.allowed_modes;
  if (step.runs.empty()) return size;
  const Rows& rows = step.runs.front().rows;
  size.num_reqs = static_cast<int32_t>(rows.num_tokens.size());
  for (const int32_t tokens : rows.num_tokens) size.num_tokens += tokens;
  size.even = is_even(rows.num_tokens, rows.computed);
  return size;
}

bool is_even(std::span<const int32_t> query_lens, std::span<const int32_t> context_lens) {
  for (size_t i = 0; i < query_lens.size(); ++i) {
    if (query_lens[i] != query_lens[0]) return false;
    if (!context_lens.empty() && context_lens[i] == 0) return false;
  }
  return !query_lens.empty();
}

int64_t num_block_updates(const Step& step) {
  size_t updates = 0;
  for (const BlockUpdates& group : step.blocks) updates += group.slot.size();
  return static_cast<int64_t>(updates);
}

const char* to_string(ForwardMode mode) {
  switch (mode) {
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
    case ForwardMode::kPrebuilt:
      return "PREBUILT";
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

const char* to_string(CaptureHiddenMode mode) {
  switch (mode) {
    case CaptureHiddenMode::kNull:
      return "NULL";
    case CaptureHiddenMode::kLast:
      return "LAST";
    case CaptureHiddenMode::kFull:
      return "FULL";
  }
  check_failed(__FILE__, __LINE__, "known CaptureHiddenMode",
               std::to_string(static_cast<int>(mode)));
}

const char* to_string(GroupRole role) {
  switch (role) {
    case GroupRole::kBoth:
      return "both";
    case GroupRole::kPrefill:
      return "prefill";
    case GroupRole::kDecode:
      return "decode";
  }
  check_failed(__FILE__, __LINE__, "known GroupRole", std::to_string(static_cast<int>(role)));
}

bool same_but_for_role(const WorkerConfig& a, WorkerConfig b) {
  b.cudagraph_mode = a.cudagraph_mode;
  b.publish_layers = a.publish_layers;
  return a == b;
}

const char* message_name(size_t index) {
  static constexpr std::array<const char*, std::variant_size_v<Message>> kNames = {
      "Hello",       "Welcome", "Refuse",       "Progress",    "Loaded",        "InitCache",
      "Ready",       "Step",    "StepResult",   "Heartbeat",   "Shutdown",      "Failed",
      "Position",    "Grammar", "GrammarReady", "LoadAdapter", "AdapterLoaded", "UnloadAdapter",
      "RankAddress", "Peers",   "KvExport",     "KvPeers",     "PullBlocks",    "CancelPull",
      "Pulled",      "TakeRole"};
  REFRAIN_CHECK(index < kNames.size(), "message index {}", index);
  return kNames[index];
}

}  // namespace refrain::ipc
