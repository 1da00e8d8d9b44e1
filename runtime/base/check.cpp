#include "runtime/base/check.h"

namespace refrain {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw FatalError(fmt::format("{} ({} is false, {}:{})", message, condition, file, line));
}

}  // namespace refrain
