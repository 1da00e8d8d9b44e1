#include "runtime/server/vllm_metrics.h"

#include <algorithm>
#include <string_view>

namespace refrain {
namespace {

constexpr std::string_view kOurs = "refrain:", kTheirs = "vllm:";

// Those that mean the same there, under the same name behind the prefix.
constexpr std::string_view kShared[] = {"cache_config_info",
                                        "e2e_request_latency_seconds",
                                        "generation_tokens_total",
                                        "inter_token_latency_seconds",
                                        "iteration_tokens_total",
                                        "kv_cache_usage_perc",
                                        "num_preemptions_total",
                                        "num_requests_running",
                                        "num_requests_waiting",
                                        "prefix_cache_hits_total",
                                        "prefix_cache_queries_total",
                                        "prompt_tokens_total",
                                        "request_decode_time_seconds",
                                        "request_generation_tokens",
                                        "request_inference_time_seconds",
                                        "request_max_num_generation_tokens",
                                        "request_prefill_time_seconds",
                                        "request_prompt_tokens",
                                        "request_queue_time_seconds",
                                        "request_success_total",
                                        "request_time_per_output_token_seconds",
                                        "spec_decode_num_accepted_tokens_per_pos_total",
                                        "spec_decode_num_accepted_tokens_total",
                                        "spec_decode_num_draft_tokens_total",
                                        "spec_decode_num_drafts_total",
                                        "time_to_first_token_seconds"};

bool is_shared(std::string_view name) {
  for (const std::string_view suffix : {"", "_bucket", "_sum", "_count"}) {
    if (!name.ends_with(suffix)) continue;
    if (std::ranges::find(kShared, name.substr(0, name.size() - suffix.size())) !=
        std::end(kShared)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string under_vllm_names(const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    size_t at = 0;
    for (const std::string_view head : {"# HELP ", "# TYPE "})
      if (line.starts_with(head)) at = head.size();
    std::string_view name = line.substr(at);
    if (!name.starts_with(kOurs)) continue;
    name.remove_prefix(kOurs.size());
    if (!is_shared(name.substr(0, name.find_first_of("{ ")))) continue;
    result.append(line.substr(0, at)).append(kTheirs).append(name).append("\n");
  }
  return result;
}

}  // namespace refrain
