#pragma once
// What an exception that ends a process says of it. Pure.

#include <exception>

#include "runtime/base/result.h"

namespace refrain {

// Without memory or threads the machine is at fault, and a later try may succeed (exit 75);
// anything else is a fault inside (exit 70).
Error error_of(const std::exception& exception);

}  // namespace refrain
