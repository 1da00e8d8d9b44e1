#pragma once
// Limits of this process that the system sets. Once, on main's thread, before others start.

#include <cstdint>

#include "runtime/base/result.h"

namespace refrain {

// Of a coordinator with few clients, or a worker; clients beyond the limit are refused.
inline constexpr uint64_t kLeastDescriptors = 128;

// Raises the soft limit of open descriptors to the hard one, for this process and its children; an
// error (exit 64) when that is less than `least`.
Status raise_descriptor_limit(uint64_t least);

// A write beyond the file size limit (ulimit -f) is an error of write() and not this process's end,
// nor that of those it starts.
void survive_file_size_limit();

}  // namespace refrain
