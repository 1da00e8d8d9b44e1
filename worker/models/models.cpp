#include "worker/models/models.h"

#include <fmt/ranges.h>

#include "worker/models/decoder.h"

namespace refrain::worker {
namespace {

struct Architecture {
  const char* name;
  Program (*build)(const ModelConfig&, const BuildOptions&);
};

constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", build_llama},
    {"Qwen2ForCausalLM", build_qwen2},
    {"Qwen3ForCausalLM", build_qwen3},
};

}  // namespace

Result<Program> build_model(const ModelConfig& config, const BuildOptions& options) {
  for (const Architecture& entry : kArchitectures)
    if (config.architecture == entry.name) return entry.build(config, options);
  return fail_field("architectures", "architecture {} has no model here; there are {}",
                    config.architecture, fmt::join(supported_architectures(), ", "));
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& entry : kArchitectures) names.emplace_back(entry.name);
  return names;
}

}  // namespace refrain::worker
