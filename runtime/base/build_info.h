#pragma once
// What this binary was built from. Coordinator and workers compare it when they meet.

#include <string>

namespace refrain {

// "0.1.0-4071578" or "0.1.0-4071578-dirty"; without git "0.1.0".
std::string build_id();

}  // namespace refrain
