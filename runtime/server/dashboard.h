#pragma once
// The page that shows a running server: dashboard.html, as it was when CMake was configured. It
// holds no data; its script asks /metrics, /cudagraphs and /ready, with the key that a person
// gives.

#include <string>

namespace refrain {

const std::string& dashboard_page();

}  // namespace refrain
