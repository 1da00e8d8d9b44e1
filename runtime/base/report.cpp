#include "runtime/base/report.h"

#include "runtime/base/log.h"

namespace refrain {

int report(const Error& error) {
  log::error("{}", error.message);
  return exit_code(error.code);
}

}  // namespace refrain
