#include <algorithm>
#include <filesystem>

#include "ipc/protocol/limits.h"
#include "runtime/base/processors.h"
#include "runtime/config/group_options.h"
#include "runtime/config/options.h"
#include "runtime/config/pooling_config.h"
#include "runtime/config/speculative_config.h"

namespace refrain {
namespace {

// Tables of RoPE and of KV blocks have a row for each position.
constexpr int64_t kLongestDefault = 1 << 20;
constexpr int64_t kLongestGiven = 1 << 24;  // of the option

// What travels to the workers must fit into a frame.
Status check_lists(const ipc::WorkerConfig& worker) {
  if (worker.cudagraph_capture_sizes.size() > ipc::kMaxCaptureSizes) {
    return fail_field("--cudagraph-capture-sizes",
                      "--cudagraph-capture-sizes holds {} sizes; at most {} are possible",
                      worker.cudagraph_capture_sizes.size(), ipc::kMaxCaptureSizes);
  }
  bool fits = worker.splitting_ops.size() <= ipc::kMaxSplittingOps;
  for (const std::string& op : worker.splitting_ops) fits = fits && op.size() <= ipc::kMaxNameBytes;
  if (!fits) {
    return fail_field("--splitting-ops",
                      "--splitting-ops takes at most {} names of at most {} characters",
                      ipc::kMaxSplittingOps, ipc::kMaxNameBytes);
  }
  for (const auto& [option, name] : {std::pair{"--cudagraph-mode", &worker.cudagraph_mode},
                                     std::pair{"--attention-backend", &worker.attention_backend}}) {
    if (name->size() > ipc::kMaxNameBytes) {
      return fail_field(option, "{} has {} characters; names have at most {}", option, name->size(),
                        ipc::kMaxNameBytes);
    }
  }
  return {};
}

// The directory's name; of the Hugging Face cache (models--OWNER--NAME/snapshots/REVISION) the
// model's.
std::string served_name(std::filesystem::path path) {
  if (!path.has_filename()) path = path.parent_path();
  const std::filesystem::path snapshots = path.parent_path();
  const std::string folder = snapshots.parent_path().filename().string();
  const std::string prefix = "models--";
  if (snapshots.filename() != "snapshots" || !folder.starts_with(prefix)) {
    return path.filename().string();
  }
  std::string name = folder.substr(prefix.size());
  if (const size_t between = name.find("--"); between != std::string::npos) {
    name.replace(between, 2, "/");
  }
  return name;
}

}  // namespace

namespace {

Status finish_lora(EngineConfig& config) {
  if (!config.enable_lora) {
    if (!config.lora.modules.empty())
      return fail_field("--lora-modules", "--lora-modules needs --enable-lora");
    if (!config.lora.directory.empty())
      return fail_field("--lora-dir", "--lora-dir needs --enable-lora");
    return {};
  }
  for (const LoraModule& module : config.lora.modules) {
    if (std::ranges::find(config.served_model_names, module.name) !=
        config.served_model_names.end())
      return fail_field("--lora-modules", "--lora-modules: {} is a name of the model itself",
                        module.name);
  }
  if (std::ssize(config.lora.modules) > config.max_cpu_loras)
    return fail_field("--max-cpu-loras", "--max-cpu-loras {} is less than the {} of --lora-modules",
                      config.max_cpu_loras, config.lora.modules.size());
  if (config.max_cpu_loras < config.max_loras)
    return fail_field("--max-cpu-loras", "--max-cpu-loras {} is less than --max-loras {}",
                      config.max_cpu_loras, config.max_loras);
  config.worker.max_loras = config.max_loras;
  config.worker.max_lora_rank = config.max_lora_rank;
  return {};
}

}  // namespace

void finish_host_threads(EngineConfig& config) {
  if (config.host_threads != 0) return;
  config.host_threads = std::max(1, usable_processors() / config.num_workers());
}

int32_t max_num_seqs(const EngineConfig& config) {
  constexpr int32_t kOnHost = 256, kOnGpus = 512;
  if (config.worker.max_num_seqs > 0) return config.worker.max_num_seqs;
  const bool gpus = config.device == "cuda" ||
                    (config.device == "auto" && std::filesystem::exists("/dev/nvidiactl"));
  return std::min(gpus ? kOnGpus : kOnHost, config.worker.max_num_batched_tokens);
}

Status finish_engine_config(EngineConfig& config, const ModelConfig& model) {
  ipc::WorkerConfig& worker = config.worker;
  worker.max_num_seqs = max_num_seqs(config);
  if (config.tokenizer.empty()) config.tokenizer = config.model;
  if (config.served_model_names.empty()) {
    config.served_model_names.push_back(served_name(config.model));
  }
  if (worker.dtype == "auto") {
    worker.dtype = model.torch_dtype == "float32" ? "float32" : "bfloat16";
  }
  if (worker.max_model_len == 0 && model.max_position_embeddings > kLongestDefault) {
    return fail_field(
        "--max-model-len",
        "the model's max_position_embeddings is {}; tables for so many tokens are not "
        "made unasked: say how many a request may have with --max-model-len (up to "
        "{})",
        model.max_position_embeddings, kLongestGiven);
  }
  if (worker.max_model_len == 0) {
    worker.max_model_len = static_cast<int32_t>(model.max_position_embeddings);
  } else if (worker.max_model_len > model.max_position_embeddings) {
    return fail_field("--max-model-len",
                      "--max-model-len {} is more than the model's max_position_embeddings {}",
                      worker.max_model_len, model.max_position_embeddings);
  }
  if (worker.max_model_len < 2) {
    return fail_field(
        "--max-model-len",
        "--max-model-len {} leaves no room for a prompt and an answer; 2 is the least",
        worker.max_model_len);
  }
  if (worker.max_num_batched_tokens < worker.max_num_seqs) {
    return fail_field("--max-num-batched-tokens",
                      "--max-num-batched-tokens {} is less than --max-num-seqs {}: a step could "
                      "not hold one token of every request",
                      worker.max_num_batched_tokens, worker.max_num_seqs);
  }
  if (config.api_server_count < 0 || config.api_server_count > 1) {
    return fail_field("--api-server-count",
                      "--api-server-count {} is not 0 or 1: one front serves all clients, on as "
                      "many threads as half of the cores",
                      config.api_server_count);
  }
  if (worker.max_padding_ratio != 0 && worker.max_padding_ratio < 1) {
    return fail_field("--max-padding-ratio",
                      "--max-padding-ratio must be at least 1, or 0 for off");
  }
  if (config.enable_auto_tool_choice && config.tool_call_parser.empty()) {
    return fail_field("--enable-auto-tool-choice",
                      "--enable-auto-tool-choice needs --tool-call-parser, which says how the "
                      "model writes its calls");
  }
  REFRAIN_ASSIGN_OR_RETURN(config.generation_defaults,
                           load_generation_defaults(config.model, config.generation_config,
                                                    config.override_generation_config));
  REFRAIN_RETURN_IF_ERROR(check_lists(worker));
  REFRAIN_RETURN_IF_ERROR(finish_lora(config));
  REFRAIN_RETURN_IF_ERROR(check_draft_model(config, model));
  REFRAIN_RETURN_IF_ERROR(finish_pooling(config, model));
  REFRAIN_RETURN_IF_ERROR(finish_groups(config, model));
  worker.load_dummy = config.load_format == "dummy";
  worker.audit = config.audit_rate > 0;
  finish_host_threads(config);
  return {};
}

}  // namespace refrain
