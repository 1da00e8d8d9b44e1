#include "worker/graph/forward_mode.h"

namespace refrain::worker {

bool is_prefill(ForwardMode mode) { return is_extend(mode) || mode == ForwardMode::kMixed; }

bool is_extend(ForwardMode mode) {
  return mode == ForwardMode::kExtend || mode == ForwardMode::kDraftExtend ||
         mode == ForwardMode::kDraftExtendV2;
}

bool is_decode(ForwardMode mode) { return mode == ForwardMode::kDecode; }

bool is_cuda_graph(ForwardMode mode) {
  return mode == ForwardMode::kDecode || mode == ForwardMode::kTargetVerify ||
         mode == ForwardMode::kDllmExtend;
}

EagerPath eager_path(ForwardMode mode) {
  switch (mode) {
    case ForwardMode::kIdle:
      return EagerPath::kIdle;
    case ForwardMode::kDecode:
    case ForwardMode::kPrebuilt:
      return EagerPath::kDecode;
    case ForwardMode::kSplitPrefill:
      return EagerPath::kSplitPrefill;
    case ForwardMode::kExtend:
    case ForwardMode::kMixed:
    case ForwardMode::kTargetVerify:
    case ForwardMode::kDraftExtend:
    case ForwardMode::kDraftExtendV2:
    case ForwardMode::kDllmExtend:
      return EagerPath::kExtend;
  }
  return EagerPath::kIdle;
}

ForwardMode forward_mode_of(int32_t num_decodes, int32_t num_prefills) {
  if (num_decodes == 0 && num_prefills == 0) return ForwardMode::kIdle;
  if (num_prefills == 0) return ForwardMode::kDecode;
  return num_decodes == 0 ? ForwardMode::kExtend : ForwardMode::kMixed;
}

}  // namespace refrain::worker
