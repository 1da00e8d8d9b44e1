#pragma once
// Of which tokens of a step the model leaves hidden states, for a draft head or a pooling (CG-35).

#include <cstdint>

namespace refrain::ipc {

// Of none, of each row's last, or of all. What leaves more serves who reads less.
enum class CaptureHiddenMode : uint8_t { kNull, kLast, kFull };

const char* to_string(CaptureHiddenMode mode);  // NULL, LAST, FULL

}  // namespace refrain::ipc
