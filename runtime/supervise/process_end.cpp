#include "runtime/supervise/process_end.h"

#include <signal.h>

#include "runtime/base/result.h"

namespace refrain {

int exit_code_of(const ChildProcess::End& end) {
  if (end.signal != 0) return kExitInternal;
  const bool known = end.code == kExitOk || end.code == kExitConfig || end.code == kExitTryAgain;
  return known ? end.code : kExitInternal;
}

bool ended_as_told(const ChildProcess::End& end) {
  return end.signal == SIGTERM || end.signal == SIGINT || (end.signal == 0 && end.code == kExitOk);
}

int give_up_code(const ChildProcess::End& end) {
  return end.signal == 0 && end.code == kExitInternal ? kExitInternal : kExitTryAgain;
}

}  // namespace refrain
