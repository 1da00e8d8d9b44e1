// Fuzzes config.json. What is accepted must be a model whose shapes can be reckoned with:
// positive sizes, and heads that divide.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/config/model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = refrain::parse_model_config(text, "config.json");
  if (!config) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  if (config->hidden_size <= 0 || config->num_layers <= 0 || config->vocab_size <= 0 ||
      config->num_heads <= 0 || config->num_kv_heads <= 0 || config->head_dim <= 0 ||
      config->num_heads % config->num_kv_heads != 0)
    std::abort();
  return 0;
}
