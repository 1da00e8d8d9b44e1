#pragma once
// Which build this is: compared in HELLO, so that coordinator and workers of different builds never
// talk.

#include <string>

namespace refrain {

// "0.1.0+<commit>", or "0.1.0" outside of a checkout.
std::string build_id();

}  // namespace refrain
