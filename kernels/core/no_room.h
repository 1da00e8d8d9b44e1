#pragma once
// What a launch throws that found no device memory for its kernel's code, which is loaded at the
// kernel's first launch: the device is unharmed, and a start-up can go on with less (CG-25).

#include <cstddef>
#include <string>

#include "runtime/base/check.h"

namespace refrain::kernels {

class NoRoomForKernel : public FatalError {
 public:
  using FatalError::FatalError;
  static constexpr size_t bytes_at_least = 64 << 10;  // a guess: the driver does not say
};

}  // namespace refrain::kernels
