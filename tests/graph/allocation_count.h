#pragma once
// Counts this thread's allocations through operator new, for tests that none happen. A test program
// that includes allocation_count.inc once replaces the global operators.

#include <cstdint>

namespace refrain::tests {

int64_t allocations_of_this_thread();

}  // namespace refrain::tests
