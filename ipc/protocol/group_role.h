#pragma once
// What a group of workers is for, when prompts and answers run in groups of their own. A role says
// where the router sends work first; every group can do all of it. Part of messages.h.

#include <cstdint>

namespace refrain::ipc {

enum class GroupRole : uint8_t {
  kBoth,     // prompts and answers
  kPrefill,  // prompts: computes them, samples the first token, lets a decode group read the blocks
  kDecode,   // answers: begins where the blocks of a prefill group end
};

}  // namespace refrain::ipc
