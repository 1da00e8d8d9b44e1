#pragma once
// What a group's workers are configured with: the coordinator's words, in Welcome.

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/protocol/draft_head.h"

namespace refrain::ipc {

// Sent whole to every worker; all else a worker needs is on its command line (weights, device).
struct WorkerConfig {
  int32_t tensor_parallel_size = 1;
  int32_t max_num_seqs = 256, max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  int32_t block_size = 16;
  std::string dtype = "bfloat16";       // activations: bfloat16 | float32
  std::string kv_cache_dtype = "auto";  // auto: as dtype
  std::string attention_backend = "auto";
  bool disable_cascade_attn = false;
  bool batch_invariant = false;  // a request's bits depend on no other request, padding or chunk
  int64_t kv_cache_memory_bytes = 0;  // 0: the device decides (gpu_memory_utilization)
  double gpu_memory_utilization = 0.9;
  int64_t num_gpu_blocks_override = 0;
  bool load_dummy = false;  // --load-format dummy
  uint64_t seed = 0;
  // CUDA graphs, as configured; every rank resolves them alike (spec CG-1 … CG-14).
  bool enforce_eager = false;
  std::string cudagraph_mode = "FULL_AND_PIECEWISE";
  bool has_capture_sizes = false;
  std::vector<int32_t> cudagraph_capture_sizes;
  int32_t max_cudagraph_capture_size = 0;   // 0: not given
  int32_t cudagraph_num_of_warmups = 0;     // before each capture; the device may ask for more
  int32_t num_speculative_tokens = 0;       // drafts of a row at most: by prompt lookup, or by
  bool draft_model = false;                 // a model whose directory every worker has been given
  DraftHead draft_head = DraftHead::kNone;  // that it is no model of its own but a head
  int32_t draft_tensor_parallel_size = 0;   // 1: every rank has all of it; 0: ranks share it
  int32_t prompt_lookup_min = 1, prompt_lookup_max = 1;  // tokens that are looked up
  int64_t synthetic_acceptance = -1;  // of 2^32 drafts so many count as right, whatever they say
  bool has_splitting_ops = false;
  std::vector<std::string> splitting_ops;
  bool disable_padding = false;
  double max_padding_ratio = 0;  // 0: off
  bool debug_cudagraph = false;
  int32_t collective_timeout_ms = 30000;
  bool disable_custom_all_reduce = false;
  bool audit = false;  // steps may ask for an audit: the runner has memory for it
  int32_t max_loras = 0, max_lora_rank = 0;  // adapters that a step may use: a worker's places
  bool cudagraph_specialize_lora = true;     // CG-15
  int32_t split_prefill = 1;  // parts that a long prompt's run is cut into (CG-39); 1: none
  std::string pooling;  // LAST, MEAN or CLS: of prompts' hidden states; empty: the model generates
  bool kv_transfer = false;  // blocks move between groups: the rank tells where its own can be read
  std::string kv_transfer_backend = "auto";  // how, as the option
  bool publish_layers = false;  // others read them while a step runs: KvExport::layer_flags
  std::string logprobs_mode = "raw_logprobs";  // what StepResult::logprobs are, as the option
  bool operator==(const WorkerConfig&) const = default;
};

// What differs between them is what a group's role decides (CG-2).
bool same_but_for_role(const WorkerConfig& a, WorkerConfig b);

}  // namespace refrain::ipc
