#pragma once
// What an attention or state op can be captured as; ordered.

#include <cstdint>

namespace refrain::worker {

enum class AttentionCGSupport : uint8_t {
  kNever,
  kUniformSingleTokenDecode,
  kUniformBatch,
  kAlways
};

}  // namespace refrain::worker
