#pragma once
// Every serving option, as parsed from the command line (vLLM's names), a configuration file or
// --compilation-config. Plain data, checked once at start.

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/config/cors_config.h"
#include "runtime/config/debug_options.h"
#include "runtime/config/generation_config.h"
#include "runtime/config/groups.h"
#include "runtime/config/model/lora_paths.h"

namespace refrain {

struct EngineConfig {
  static constexpr int32_t kMostGroups = 1024;

  // model
  std::string model;                            // directory
  std::string tokenizer;                        // directory; empty: model
  std::vector<std::string> served_model_names;  // empty: the directory's name
  std::string chat_template;                    // file; empty: the model's own
  std::string load_format = "auto";             // auto | safetensors | dummy
  std::string draft_model;                      // directory of a model that drafts; empty: none
  int32_t draft_tensor_parallel_size = 0;       // 1 or the model's; 0: the model's

  // requests and answers
  std::string generation_config = "auto";  // auto | vllm | directory
  std::string override_generation_config;  // JSON; empty: none
  GenerationDefaults generation_defaults;  // what these two give; filled at start
  std::string tool_call_parser;            // names of runtime/text/answer; empty: none
  std::string reasoning_parser;
  bool enable_auto_tool_choice = false;
  bool trust_request_chat_template = false;
  int32_t max_logprobs = 20;

  // models that pool (pooling_config.h)
  std::string runner = "auto";     // auto | generate | pooling
  std::string convert = "auto";    // auto | none | embed
  std::string pooler_config;       // JSON; empty: the model's own
  bool pooling_normalize = true;   // vectors of /v1/embeddings; filled at start
  int32_t pooling_dimensions = 0;  // of them, unless a request says so; 0: all

  // workers: all that travels to them
  ipc::WorkerConfig worker;
  bool cudagraph_mode_given = false;  // by the user; else a group's role says it (CG-2)
  int32_t data_parallel_size = 1;     // groups of workers, each with a copy of the model
  int32_t prefill_groups = 0, decode_groups = 0;  // instead: groups with a role
  int32_t prefill_tensor_parallel_size = 0;       // workers of such a group; 0: as
  int32_t decode_tensor_parallel_size = 0;        // tensor_parallel_size says
  double kv_transfer_timeout = 10;                // seconds without progress
  std::string kv_transfer_policy = "auto";        // auto | always
  std::string device = "auto";                    // auto | host | cuda
  int32_t host_threads = 0;                       // per worker; 0: cores / workers, at least 1
  std::string host_isa;                           // empty: best

  LoraPaths lora;  // with --enable-lora
  bool enable_lora = false;
  int32_t max_loras = 1;
  int32_t max_lora_rank = 16;
  int32_t max_cpu_loras = 64;  // adapters that are known at a time

  // scheduling
  std::string scheduling_policy = "fcfs";  // fcfs | priority
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  int32_t long_prefill_token_threshold = 0;  // 0: what a step may have
  bool async_scheduling = true;              // step n+1 planned and sent while n runs
  double audit_rate = 0;        // share of the steps that run a second time, to be compared (CG-41)
  double schedule_lead_ms = 1;  // n+1 is planned that long before n is expected to end

  // server
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  int32_t api_server_count = 1;  // 1: HTTP in a process of its own; 0: in the coordinator
  std::vector<std::string> api_keys;
  std::string api_key_file;  // JSON; empty: none
  std::string ssl_certfile;  // PEM; with ssl_keyfile: TLS
  std::string ssl_keyfile;
  CorsConfig cors;
  double sse_keep_alive_interval = 15.0;  // seconds; comments in a stream that waits; 0: none
  int32_t max_queue = 0;                  // waiting requests; 0: no limit
  double max_queue_wait = 0;              // seconds until the first token; 0: no limit
  double drain_timeout = 30.0;            // seconds
  std::string control_key;                // of routes that drain and restart; empty: they are off
  double log_stats_interval = 60.0;       // seconds between tables of graphs that ran; 0: none
  bool disable_log_stats = false;         // no line of throughput
  bool vllm_metrics = false;              // /metrics has vLLM's names too
  std::string trace_file;                 // Chrome trace of steps and requests; empty: none
  double heartbeat_interval = 0.5;
  double heartbeat_timeout = 2.0;
  double start_timeout = 600.0;

  // processes
  std::string ipc_address;  // empty: ipc:// in a fresh private directory
  std::string curve_key;    // files of keys, for tcp:// (ipc/transport/curve.h)
  std::string curve_allow;
  bool insecure_tcp = false;
  std::string log_level = "info";
  int32_t max_restarts = 3;  // of a group within a minute
  std::string incident_dir;  // empty: one that goes with the run directory
  std::string fault;         // staged in workers, for drills; empty: none

  DebugOptions debug;

  bool has_roles() const { return prefill_groups > 0 || decode_groups > 0; }
  int32_t num_groups() const {
    return has_roles() ? prefill_groups + decode_groups : data_parallel_size;
  }
  int32_t num_workers() const;                            // of all groups
  std::vector<Group> groups() const;                      // by id: prefill groups first
  ipc::WorkerConfig worker_of(const Group& group) const;  // what its workers are told
};

}  // namespace refrain
