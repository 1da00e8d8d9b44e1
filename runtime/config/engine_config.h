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

namespace refrain {

struct EngineConfig {
  // model
  std::string model;                            // directory
  std::string tokenizer;                        // directory; empty: model
  std::vector<std::string> served_model_names;  // empty: the directory's name
  std::string chat_template;                    // file; empty: the model's own
  std::string load_format = "auto";             // auto | safetensors | dummy

  // requests and answers
  std::string generation_config = "auto";  // auto | vllm | directory
  std::string override_generation_config;  // JSON; empty: none
  GenerationDefaults generation_defaults;  // what these two give; filled at start
  std::string tool_call_parser;            // names of runtime/text/answer; empty: none
  std::string reasoning_parser;
  bool enable_auto_tool_choice = false;
  bool trust_request_chat_template = false;

  // workers: all that travels to them
  ipc::WorkerConfig worker;
  std::string device = "auto";  // auto | host | cuda
  int32_t host_threads = 0;     // per worker; 0: cores / ranks, at least 1
  std::string host_isa;         // empty: best

  // scheduling
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  bool async_scheduling = true;  // step n+1 planned and sent while n runs
  double audit_rate = 0;        // share of the steps that run a second time, to be compared (CG-41)
  double schedule_lead_ms = 1;  // n+1 is planned that long before n is expected to end

  // server
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::vector<std::string> api_keys;
  std::string api_key_file;  // JSON; empty: none
  std::string ssl_certfile;  // PEM; with ssl_keyfile: TLS
  std::string ssl_keyfile;
  CorsConfig cors;
  double sse_keep_alive_interval = 15.0;  // seconds; comments in a stream that waits; 0: none
  int32_t max_queue = 0;                  // waiting requests; 0: no limit
  double max_queue_wait = 0;              // seconds until the first token; 0: no limit
  double drain_timeout = 30.0;            // seconds
  double log_stats_interval = 60.0;       // seconds between tables of graphs that ran; 0: none
  bool disable_log_stats = false;         // no line of throughput
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
};

}  // namespace refrain
