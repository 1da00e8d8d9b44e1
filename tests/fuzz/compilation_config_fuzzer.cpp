// Fuzzes --compilation-config.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/config/compilation_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  refrain::ipc::WorkerConfig config;
  const auto status = refrain::apply_compilation_config(
      std::string(reinterpret_cast<const char*>(data), size), config);
  if (!status && status.error().message.empty()) std::abort();
  return 0;
}
