#pragma once
// Counts what the calling thread allocates through operator new while it lives (this test program
// replaces operator new).

#include <cstddef>

namespace refrain::ipc {

class AllocationCount {
 public:
  AllocationCount();
  size_t bytes() const;  // in sum, freed or not

 private:
  size_t start_;
};

}  // namespace refrain::ipc
