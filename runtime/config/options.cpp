#include "runtime/config/options.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <utility>

#include "ipc/protocol/limits.h"
#include "runtime/base/log.h"
#include "runtime/config/answer_options.h"
#include "runtime/config/compilation_config.h"
#include "runtime/config/group_options.h"
#include "runtime/config/option_values.h"
#include "runtime/config/pooling_config.h"
#include "runtime/config/speculative_config.h"

namespace refrain {
namespace {

// What a server takes on; generate and bench queue all they are given.
constexpr int32_t kServerQueue = 2048;
constexpr double kServerQueueWait = 60.0;
// Workers beat twice a second: in less than two beats a healthy one may be silent.
constexpr double kLeastHeartbeatTimeout = 1.0;

void add_model_options(CLI::App& app, EngineConfig& config, bool positional) {
  const char* names = positional ? "--model,model" : "--model";
  app.add_option(
         names, config.model,
         "Directory with config.json, tokenizer.json, *.safetensors, or the name of a model "
         "in the Hugging Face cache")
      ->transform(model_directory())
      ->group("Model");
  app.add_option("--tokenizer", config.tokenizer, "Tokenizer directory (default: the model's)")
      ->group("Model");
  app.add_option("--served-model-name", config.served_model_names,
                 "Names the API answers to (default: the directory's name)")
      ->delimiter(',')
      ->group("Model");
  app.add_option("--chat-template", config.chat_template, "Jinja file (default: the model's own)")
      ->group("Model");
  app.add_option("--dtype", config.worker.dtype, "Activations: auto, bfloat16 or float32")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->group("Model");
  app.add_option("--load-format", config.load_format,
                 "auto, safetensors, or dummy (made-up weights)")
      ->check(CLI::IsMember({"auto", "safetensors", "dummy"}))
      ->group("Model");
  app.add_option("--max-model-len", config.worker.max_model_len,
                 "Longest prompt plus output, e.g. 32k (default: the model's)")
      ->transform(human_int(1, 1 << 24))
      ->group("Model");
  app.add_option("--seed", config.worker.seed, "Seed of dummy weights and unseeded requests")
      ->group("Model");
}

void add_parallel_options(CLI::App& app, EngineConfig& config) {
  const char* group = "Processes and device";
  app.add_option("--tensor-parallel-size,--tp", config.worker.tensor_parallel_size,
                 "Workers that share the model")
      ->check(CLI::Range(1, 64))
      ->group(group);
  add_group_options(app, config, group);
  app.add_option("--device", config.device, "auto, host or cuda")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->group(group);
  app.add_option(
         "--host-threads", config.host_threads,
         "Host device: threads a worker (default: cores, or what the container may use of them, "
         "/ workers)")
      ->check(CLI::Range(0, 1024))
      ->group(group);
  app.add_option("--host-isa", config.host_isa,
                 "Host device: scalar, avx2, avx512 or avx512_bf16 (default: the best here)")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512", "avx512_bf16"}))
      ->group(group);
  app.add_option("--log-level", config.log_level, "trace, debug, info, warning, error, off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}))
      ->group(group);
  app.add_option("--start-timeout", config.start_timeout, "Seconds workers may take to be ready")
      ->check(number_in(1.0, 86400.0))
      ->group(group);
  app.add_option("--heartbeat-timeout", config.heartbeat_timeout,
                 "Seconds without a worker's heartbeat that count as a hang")
      ->check(number_in(kLeastHeartbeatTimeout, 3600.0))
      ->group(group);
  app.add_option("--max-restarts", config.max_restarts,
                 "Restarts of a worker group within a minute before serve gives up")
      ->check(CLI::Range(0, 1000000))
      ->group(group);
  app.add_option("--incident-dir", config.incident_dir,
                 "Directory for records of lost processes (default: one that goes at the end)")
      ->group(group);
  app.add_option("--collective-timeout-ms", config.worker.collective_timeout_ms,
                 "Deadline of a collective between workers")
      ->check(CLI::Range(10, 3600000))
      ->group(group);
  app.add_flag("--disable-custom-all-reduce", config.worker.disable_custom_all_reduce,
               "GPUs sum and gather by NCCL alone, not over peer memory (slower)")
      ->group(group);
}

void add_scheduling_options(CLI::App& app, EngineConfig& config) {
  const char* group = "Scheduling";
  app.add_option("--max-num-seqs", config.worker.max_num_seqs,
                 "Requests that run at once (default: 512 on GPUs, 256 on the host)")
      ->transform(human_int(1, 65536))
      ->group(group);
  app.add_option("--max-num-batched-tokens", config.worker.max_num_batched_tokens,
                 "Tokens of one step (prefills are chunked to fit), e.g. 8k")
      ->transform(human_int(1, 1 << 20))
      ->group(group);
  app.add_option("--scheduling-policy", config.scheduling_policy,
                 "fcfs: requests begin in order of arrival; priority: those with a lower priority "
                 "field first, and the others make room for them")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->group(group);
  app.add_option("--split-prefill", config.worker.split_prefill,
                 "Parts (ranges of layers) that the run of a long prompt is cut into while others "
                 "decode, with their steps between them; 1: it is not cut")
      ->check(CLI::Range(1, 64))
      ->group(group);
  app.add_option("--long-prefill-token-threshold", config.long_prefill_token_threshold,
                 "Prompts with more tokens to compute are long: shorter ones run beside them and "
                 "take up to half of each step's prompt tokens (default 0: what one step may have)")
      ->transform(human_int(0, std::numeric_limits<int32_t>::max()))
      ->group(group);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", config.enable_prefix_caching,
               "Reuse the cache of equal prompt beginnings (on)")
      ->group(group);
  app.add_flag("--async-scheduling,!--no-async-scheduling", config.async_scheduling,
               "Plan and send step n+1 while step n runs (on)")
      ->group(group);
  app.add_option("--audit-rate", config.audit_rate,
                 "Share of the steps that run a second time, eagerly, and are compared: logits, "
                 "tokens, keys and values")
      ->check(CLI::Range(0.0, 1.0))
      ->group(group);
  app.add_option("--schedule-lead-ms", config.schedule_lead_ms,
                 "Plan step n+1 that long before n is expected to end, so that requests which come "
                 "meanwhile are in it; a large value plans it when n begins")
      ->check(CLI::Range(0.0, 1e6))
      ->group(group);
}

void add_lora_options(CLI::App& app, EngineConfig& config) {
  const char* group = "LoRA";
  app.add_flag("--enable-lora", config.enable_lora, "Serve LoRA adapters of the model (off)")
      ->group(group);
  app.add_option("--max-loras,--max-loras-per-batch", config.max_loras,
                 "Adapters that one step may use: as many are kept on the device")
      ->check(CLI::Range(1, static_cast<int>(ipc::kMaxAdapters)))
      ->group(group);
  app.add_option("--max-lora-rank", config.max_lora_rank, "Largest rank of an adapter")
      ->check(CLI::Range(1, 512))
      ->group(group);
  app.add_option("--max-cpu-loras", config.max_cpu_loras,
                 "Adapters that are loaded at a time, in the workers' memory")
      ->check(CLI::Range(1, static_cast<int>(ipc::kMaxAdapters)))
      ->group(group);
  add_lora_paths(app, config.lora, group);
}

void add_cache_options(CLI::App& app, EngineConfig& config) {
  const char* group = "KV cache";
  app.add_option("--block-size", config.worker.block_size, "Tokens a block: 8, 16, 32, 64 or 128")
      ->check(CLI::IsMember({8, 16, 32, 64, 128}))
      ->group(group);
  app.add_option("--kv-cache-dtype", config.worker.kv_cache_dtype, "auto, bfloat16 or float32")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->group(group);
  app.add_option("--kv-cache-memory-bytes", config.worker.kv_cache_memory_bytes,
                 "Size of the cache a worker (default: the device decides)")
      ->transform(human_int(0, int64_t{1} << 50))
      ->group(group);
  app.add_option("--gpu-memory-utilization,--mem-fraction-static",
                 config.worker.gpu_memory_utilization,
                 "Share of a GPU's memory that a worker may use")
      ->check(number_in(0.01, 1.0))
      ->group(group);
  app.add_option("--num-gpu-blocks-override", config.worker.num_gpu_blocks_override,
                 "Blocks of the cache (default: as many as the memory holds)")
      ->transform(human_int(0, int64_t{1} << 40))
      ->group(group);
}

void add_graph_options(CLI::App& app, EngineConfig& config) {
  const char* group = "CUDA graphs";
  ipc::WorkerConfig& worker = config.worker;
  app.add_flag("--enforce-eager,--disable-cuda-graph", worker.enforce_eager, "No graphs at all")
      ->group(group);
  CLI::Option* mode =
      app.add_option("--cudagraph-mode", worker.cudagraph_mode,
                     "NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE (default "
                     "FULL_AND_PIECEWISE; of prefill groups PIECEWISE, of decode groups "
                     "FULL_DECODE_ONLY)")
          ->each([&config](const std::string&) { config.cudagraph_mode_given = true; })
          ->group(group);
  app.add_flag_callback(
         "--enable-piecewise-cuda-graph",
         [&config] {
           config.worker.cudagraph_mode = "FULL_AND_PIECEWISE";
           config.cudagraph_mode_given = true;
         },
         "SGLang's name for --cudagraph-mode FULL_AND_PIECEWISE")
      ->excludes(mode)
      ->group(group);
  app.add_option_function<std::vector<int32_t>>(
         "--cudagraph-capture-sizes,--cuda-graph-bs",
         [&worker](const std::vector<int32_t>& sizes) {
           worker.has_capture_sizes = true;
           worker.cudagraph_capture_sizes = sizes;
         },
         "Batch sizes to capture, e.g. 1,2,4,8")
      ->delimiter(',')
      ->group(group);
  app.add_option("--max-cudagraph-capture-size,--cuda-graph-max-bs",
                 worker.max_cudagraph_capture_size,
                 "Largest size of the default list (default: 512, less with few requests)")
      ->check(CLI::Range(1, ipc::kMaxCaptureSize))
      ->group(group);
  app.add_option_function<std::vector<std::string>>(
         "--splitting-ops",
         [&worker](const std::vector<std::string>& ops) {
           worker.has_splitting_ops = true;
           worker.splitting_ops = ops;
         },
         "Ops that PIECEWISE graphs leave out (default: rope_kv_write and attention)")
      ->delimiter(',')
      ->group(group);
  app.add_option_function<std::string>(
         "--compilation-config,-O",
         [&config](const std::string& json) {
           const std::string before = std::exchange(config.worker.cudagraph_mode, "");
           const auto ignored = apply_compilation_config(json, config.worker);
           if (config.worker.cudagraph_mode.empty()) {
             config.worker.cudagraph_mode = before;
           } else {
             config.cudagraph_mode_given = true;
           }
           if (!ignored)
             throw CLI::ValidationError("--compilation-config", ignored.error().message);
           for (const std::string& key : *ignored) log::info("--compilation-config: {}", key);
         },
         "vLLM's object of graph settings (JSON); what it ignores is logged with the reason")
      ->group(group);
  app.add_flag("--disable-padding,--disable-cuda-graph-padding", worker.disable_padding,
               "Only batches of exactly a graph's size")
      ->group(group);
  app.add_option("--max-padding-ratio", worker.max_padding_ratio,
                 "No PIECEWISE graph above this multiple of the batch (0: off)")
      ->check(number_in(0.0, 1e6))
      ->group(group);
  app.add_option("--attention-backend", worker.attention_backend,
                 "Attention implementation; GROUP=NAME,… by state group")
      ->group(group);
  app.add_flag("--disable-cascade-attn", worker.disable_cascade_attn,
               "A prefix that requests share is read for each of them")
      ->group(group);
  app.add_flag(
         "--batch-invariant", worker.batch_invariant,
         "A request's answer depends to the bit on nothing else that runs, on CUDA too (slower)")
      ->group(group);
}

void add_speculation_options(CLI::App& app, EngineConfig& config) {
  app.add_option_function<std::string>(
         "--speculative-config",
         [&config](const std::string& json) {
           if (const Status applied = apply_speculative_config(json, config); !applied)
             throw CLI::ValidationError("--speculative-config", applied.error().message);
           if (const std::string wrong = model_directory()(config.draft_model); !wrong.empty())
             throw CLI::ValidationError("--speculative-config", wrong);
         },
         "vLLM's object of speculative decoding (JSON): method ngram, draft_model, eagle or "
         "eagle3, "
         "num_speculative_tokens; prompt_lookup_min, prompt_lookup_max; model, "
         "draft_tensor_parallel_size; to measure, rejection_sample_method synthetic with "
         "synthetic_acceptance_rate")
      ->group("Scheduling");
}

// What only tests, drills and the search for a fault need.
void add_testing_options(CLI::App& app, EngineConfig& config) {
  app.add_flag("--debug-cudagraph", config.worker.debug_cudagraph,
               "Compare addresses of every replay with those of its capture")
      ->group("Debugging");
  app.add_option("--trace-file", config.trace_file,
                 "Writes the life of every step and request there, in Chrome's trace format")
      ->group("Debugging");
  app.add_option("--fault", config.fault,
                 "For drills: workers stage this fault, e.g. kind=spin,rank=1")
      ->group("Testing");
}

// A default is shown unless the description tells what it is.
void show_defaults(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const bool told = option->get_description().find("(default") != std::string::npos;
    if (!told && option->get_type_size() != 0) option->capture_default_str();
  }
}

void add_server_options(CLI::App& app, EngineConfig& config) {
  const char* group = "Server";
  app.add_option("--host", config.host, "Address to listen on")->group(group);
  app.add_option("--port", config.port, "Port to listen on (0: any free one)")
      ->check(CLI::Range(0, 65535))
      ->group(group);
  app.add_option("--api-server-count", config.api_server_count,
                 "1: HTTP is served by a process of its own, so that clients outlive the "
                 "coordinator; 0: by the coordinator")
      ->group(group);
  app.add_option("--api-key", config.api_keys,
                 "Key that clients must send as Bearer (give it again for more keys)")
      ->envname("REFRAIN_API_KEY")
      ->group(group);
  app.add_option("--api-key-file", config.api_key_file,
                 "JSON file of keys with a name and a limit of concurrent requests each")
      ->group(group);
  app.add_option("--ssl-certfile", config.ssl_certfile, "Certificate chain (PEM): serve HTTPS")
      ->group(group);
  app.add_option("--ssl-keyfile", config.ssl_keyfile, "Private key of --ssl-certfile (PEM)")
      ->group(group);
  add_cors_options(app, config.cors, group);
  app.add_option("--sse-keep-alive-interval", config.sse_keep_alive_interval,
                 "Seconds after which a stream that waits gets a comment (0: none)")
      ->check(number_in(0.0, 3600.0))
      ->group(group);
  config.max_queue = kServerQueue;
  app.add_option("--max-queue", config.max_queue, "Waiting requests before 429 (0: no limit)")
      ->transform(human_int(0, 1 << 30))
      ->group(group);
  config.max_queue_wait = kServerQueueWait;
  app.add_option("--max-queue-wait", config.max_queue_wait,
                 "Seconds that a request may wait for its first token before 429 (0: no limit)")
      ->check(number_in(0.0, 86400.0))
      ->group(group);
  app.add_option("--drain-timeout", config.drain_timeout,
                 "Seconds that running requests get after SIGTERM, and of a group that is drained")
      ->check(number_in(0.0, 86400.0))
      ->group(group);
  app.add_option("--control-key", config.control_key,
                 "Key of an operator, who may drain the server and drain or restart its groups: "
                 "POST /drain, /resume, /restart (default: nobody may)")
      ->envname("REFRAIN_CONTROL_KEY")
      ->group(group);
  app.add_flag("--vllm-metrics", config.vllm_metrics,
               "/metrics tells what vLLM has too under its names (vllm:…) besides")
      ->group(group);
  app.add_flag("--disable-log-stats", config.disable_log_stats,
               "No line of throughput every ten seconds under load")
      ->group(group);
  app.add_option("--log-stats-interval", config.log_stats_interval,
                 "Seconds between tables of the graphs that ran (0: none)")
      ->check(number_in(0.0, 86400.0))
      ->group(group);
}

}  // namespace

void add_engine_options(CLI::App& app, EngineConfig& config, const OptionGroups& groups) {
  config.worker.dtype = "auto";
  config.worker.max_model_len = config.worker.max_num_seqs = 0;
  app.add_option("--config", "File of options (JSON); the command line wins")->group("Model");
  add_model_options(app, config, groups.positional_model);
  add_answer_options(app, config, groups.server);
  add_parallel_options(app, config);
  add_scheduling_options(app, config);
  add_cache_options(app, config);
  add_lora_options(app, config);
  add_graph_options(app, config);
  add_speculation_options(app, config);
  if (groups.server) add_pooling_options(app, config);
  if (groups.server) add_server_options(app, config);
  add_debug_options(app, config.debug);
  add_testing_options(app, config);
  show_defaults(app);
}

}  // namespace refrain
