#include "worker/device/device.h"

namespace refrain::worker {

const char* to_string(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kWeights:
      return "weights";
    case MemoryTag::kArena:
      return "arena";
    case MemoryTag::kGraphs:
      return "graphs";
    case MemoryTag::kCollectives:
      return "collectives";
    case MemoryTag::kKvCache:
      return "kv_cache";
    case MemoryTag::kInputs:
      return "inputs";
    case MemoryTag::kOther:
      return "other";
  }
  return "?";
}

}  // namespace refrain::worker
