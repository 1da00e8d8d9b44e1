#pragma once
// How a program ends with an error. Any thread.

#include "runtime/base/result.h"

namespace refrain {

// Logs the error and returns its exit code.
int report(const Error& error);

}  // namespace refrain
