#pragma once
// A draft model that reads hidden states of the language model, by its method: which ones it reads,
// and how (docs/speculation.md).

#include <cstdint>

namespace refrain::ipc {

enum class DraftHead : uint8_t { kNone, kEagle, kEagle3 };

}  // namespace refrain::ipc
