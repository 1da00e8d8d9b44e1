#pragma once
// The name of this machine: whether two processes are on the same one. Any thread.

#include <string>

namespace refrain {

std::string host_name();

}  // namespace refrain
