#pragma once
// What `refrain bench serve --base-url` is asked to do: vLLM's names where it has them. Plain data,
// filled from the command line.

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace CLI {
class App;
}

namespace refrain {

inline constexpr double kNoRate = std::numeric_limits<double>::infinity();

struct LoadOptions {
  // the server
  std::string base_url;  // http[s]://HOST[:PORT][/PATH]
  std::string endpoint = "/v1/completions";
  std::string model;  // empty: the first of /v1/models
  std::string api_key;
  std::string extra_body = "{}";  // JSON object that goes into every request
  double request_timeout = 600;   // seconds, of one whole request

  // requests
  std::string dataset = "sharegpt";
  std::string dataset_path;
  std::string tokenizer;              // directory; empty: none
  std::string prompts = "token_ids";  // token_ids | text
  int64_t num_prompts = 1000;
  int64_t num_warmups = 0;
  int64_t vocab_size = 30000;  // random token ids are from 10 up to it
  int64_t random_input_len = 1024;
  int64_t random_output_len = 128;
  double random_range_ratio = 0;
  int64_t random_prefix_len = 0;
  int64_t prefix_len = 256, prefix_suffix_len = 256, prefix_num_prefixes = 10,
          prefix_output_len = 128;
  int64_t sharegpt_output_len = 0;  // 0: the answer's own length
  int64_t custom_output_len = 256;  // of lines that do not say it
  uint64_t seed = 0;
  double temperature = 0;
  bool ignore_eos = false;

  // arrivals
  double request_rate = kNoRate;
  double burstiness = 1;         // 1: Poisson; less: bursts; more: evener
  int64_t max_concurrency = 0;   // 0: no limit
  std::string ramp_up_strategy;  // linear | exponential; empty: none
  double ramp_up_start_rps = 1, ramp_up_end_rps = 0;

  // what is said of it
  std::map<std::string, double> goodput;  // ttft, tpot, e2el -> most milliseconds
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> metric_percentiles = {99};
  bool save_result = false;
  bool save_detailed = false;
  std::string result_filename;
  std::string result_dir;
  std::string plot;  // SVG file; empty: none
  bool json = false;
  int threads = 2;

  bool is_chat() const { return endpoint.find("/chat/") != std::string::npos; }
};

// Declares the options on `app`; `options` must outlive it.
void add_load_options(CLI::App& app, LoadOptions& options);
// What the command line alone cannot check; fills what one option says for another.
Status finish_load_options(LoadOptions& options);

}  // namespace refrain
