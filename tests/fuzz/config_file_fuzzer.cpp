// Fuzzes the file of --config: into arguments, and these through the command line.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/config/options.h"

namespace {

// A file in memory, made once and refilled for every input.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) std::abort();
  }
  void fill(const uint8_t* data, size_t size) const {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size))
      std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  file.fill(data, size);
  const auto arguments = refrain::config_file_arguments(file.path());
  if (!arguments) {
    if (arguments.error().message.empty()) std::abort();
    return 0;
  }
  for (const std::string& argument : *arguments)
    if (argument == "--help" || argument == "--version") return 0;  // these print
  refrain::EngineConfig config;
  CLI::App app;
  refrain::add_engine_options(app, config, {});
  const auto outcome = refrain::parse_command_line(app, *arguments);
  if (!outcome && outcome.error().message.empty()) std::abort();
  return 0;
}
