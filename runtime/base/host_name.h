#pragma once
// The name of this machine, for people: it is no identity (process_identity.h). Any thread.

#include <string>

namespace refrain {

std::string host_name();

}  // namespace refrain
