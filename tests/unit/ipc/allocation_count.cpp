#include "tests/unit/ipc/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {
thread_local size_t allocated = 0;
}

void* operator new(size_t bytes) {
  allocated += bytes;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocated += bytes;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace refrain::ipc {

AllocationCount::AllocationCount() : start_(allocated) {}
size_t AllocationCount::bytes() const { return allocated - start_; }

}  // namespace refrain::ipc
