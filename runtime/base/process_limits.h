#pragma once
// Limits of this process that the system sets. Once, on main's thread, before others start.

#include <cstdint>

#include "runtime/base/result.h"

namespace refrain {

// Raises the soft limit of open descriptors to the hard one, for this process and its children; an
// error (exit 64) when that is less than `least`.
Status raise_descriptor_limit(uint64_t least);

}  // namespace refrain
