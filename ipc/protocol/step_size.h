#pragma once
// Of a step that replicas take together (CG-17).

#include <cstdint>

namespace refrain::ipc {

// What a step asks of dispatch, as replicas that step together must know it of each other (CG-17).
struct StepSize {
  int32_t num_tokens = 0, num_reqs = 0;  // none: the replica is idle
  bool even = false;                     // each request has as many tokens, over a context
  bool cascade = false, has_lora = false;
  uint8_t allowed_modes = 7;

  bool operator==(const StepSize&) const = default;
};

}  // namespace refrain::ipc
