#pragma once
// What an exception that ends a process says of it.

#include <exception>

#include "runtime/base/result.h"

namespace refrain {

// Without memory or threads the machine is at fault, and a later try may succeed (exit 75);
// anything else is a fault inside (exit 70).
Error error_of(const std::exception& exception);

// For main, which ends with it: logs the exception; the exit code by the same rule.
int end_by(const std::exception& exception);

// From here on an exception that no thread catches ends the process by the same rule: a lack of
// memory or threads with exit code 75 and a sentence, anything else by std::abort. Once, in main.
void end_by_what_is_lacking();

}  // namespace refrain
