// worker: one rank of a model, on one device; or, as `worker bench`, of a benchmark of the device.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <exception>
#include <string_view>

#include "apps/worker/commands.h"
#include "runtime/base/last_error.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"

namespace refrain {

bool die_with(pid_t parent) {
  return parent <= 0 || (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent);
}

}  // namespace refrain

int main(int argc, char** argv) {
  using namespace refrain;
  const bool bench = argc > 1 && std::string_view(argv[1]) == "bench";
  end_by_what_is_lacking();
  init_logging("worker");
  try {
    return bench ? bench_command({argv + 2, argv + argc}) : serve_command({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    return end_by(error);
  }
}
