#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/refrain/commands.h"
#include "ipc/transport/curve.h"
#include "runtime/base/report.h"
#include "runtime/config/options.h"

namespace refrain {

int keygen_command(const std::vector<std::string>& arguments) {
  std::string directory;
  std::vector<std::string> workers = {"worker"};
  CLI::App app(
      "Makes the keys with which workers and coordinator talk over tcp://. In DIR: coordinator.key "
      "and "
      "coordinator.allow for the coordinator; WORKER.key and worker.allow for a worker. Run it "
      "again "
      "with another name to let one more worker in; delete its line in coordinator.allow to shut "
      "it "
      "out.",
      "refrain keygen");
  app.add_option("directory", directory, "Where the files go; made with mode 0700")->required();
  app.add_option("worker", workers, "A key pair for each name, e.g. one a host")
      ->capture_default_str();
  const auto parsed = parse_command_line(app, arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  const auto written = ipc::add_curve_keys(directory, workers);
  if (!written) return report(written.error());
  for (const auto& file : *written) std::printf("%s\n", file.c_str());
  return kExitOk;
}

}  // namespace refrain
