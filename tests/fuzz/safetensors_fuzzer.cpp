// Fuzzes the header of a safetensors file. The first two bytes are the size of the data, the rest
// is the header's JSON. What is accepted must tile the data exactly.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "worker/weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t data_bytes = data[0] | static_cast<uint64_t>(data[1]) << 8;
  const std::span header(reinterpret_cast<const char*>(data + 2), size - 2);
  const auto tensors = refrain::worker::parse_safetensors_header(header, data_bytes, "fuzz");
  if (!tensors) {
    if (tensors.error().message.empty()) std::abort();
    return 0;
  }
  uint64_t at = 0;
  for (const auto& tensor : *tensors) {
    if (tensor.begin != at || tensor.end < tensor.begin) std::abort();
    at = tensor.end;
  }
  if (at != data_bytes) std::abort();
  return 0;
}
