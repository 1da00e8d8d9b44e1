// Fuzzes the input of `refrain plan`. Errors must print as JSON.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto plan = refrain::explain_plan(std::string(reinterpret_cast<const char*>(data), size));
  const std::string text = plan ? *plan : refrain::plan_error(plan.error());
  if (text.empty()) std::abort();
  return 0;
}
