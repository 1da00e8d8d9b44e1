#pragma once
// Of a step that replicas take together (CG-17).

#include <cstdint>
#include <span>

namespace refrain::ipc {

// What a step asks of dispatch, as replicas that step together must know it of each other (CG-17).
struct StepSize {
  int32_t num_tokens = 0, num_reqs = 0;  // none: the replica is idle
  bool even = false;                     // each request has as many tokens, over a context
  bool cascade = false, has_lora = false;
  uint8_t allowed_modes = 7;

  bool operator==(const StepSize&) const = default;
};

// Whether there are requests, all with as many tokens, each over a context. `context_lens` empty:
// the query lengths alone decide.
bool is_even(std::span<const int32_t> query_lens, std::span<const int32_t> context_lens);

}  // namespace refrain::ipc
