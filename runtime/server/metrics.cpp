#include "runtime/server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <span>
#include <sstream>

namespace refrain {
namespace {

using Labels = std::map<std::string, std::string>;

prometheus::Histogram& histogram(prometheus::Registry& registry, const Labels& labels,
                                 const char* name, const char* help,
                                 const prometheus::Histogram::BucketBoundaries& boundaries) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                   boundaries);
}

// Of every step, from the counts of its sizes.
void add_step_tokens(prometheus::Registry& scrape, const Labels& labels,
                     const std::vector<GraphUse>& uses) {
  const prometheus::Histogram::BucketBoundaries bounds = {1,   8,    16,   32,   64,   128,  256,
                                                          512, 1024, 2048, 4096, 8192, 16384};
  std::vector<double> counts(bounds.size() + 1);
  double sum = 0;
  for (const GraphUse& use : uses) {
    const auto at = std::ranges::lower_bound(bounds, static_cast<double>(use.num_tokens));
    counts[static_cast<size_t>(at - bounds.begin())] += static_cast<double>(use.count);
    sum += static_cast<double>(use.num_tokens) * static_cast<double>(use.count);
  }
  histogram(scrape, labels, "refrain:iteration_tokens_total", "Tokens of a step", bounds)
      .ObserveMultiple(counts, sum);
}

}  // namespace

struct Metrics::State {
  State(const std::string& model, Labels cache_config)
      : labels{{"model_name", model}},
        cache(std::move(cache_config)),
        first_token(histogram(
            registry, labels, "refrain:time_to_first_token_seconds",
            "Time from request to first token",
            {.001, .0025, .005, .01, .02, .04, .08, .16, .32, .64, 1.25, 2.5, 5, 10, 40})),
        inter_token(
            histogram(registry, labels, "refrain:inter_token_latency_seconds",
                      "Time between outputs of one request",
                      {.0005, .001, .0025, .005, .01, .02, .04, .08, .16, .32, .64, 1.25, 5})),
        per_token(
            histogram(registry, labels, "refrain:request_time_per_output_token_seconds",
                      "Mean time between the tokens of one request",
                      {.0005, .001, .0025, .005, .01, .02, .04, .08, .16, .32, .64, 1.25, 5})),
        end_to_end(request_time("e2e_request_latency", "Time from request to end of the answer")),
        queue(request_time("request_queue_time", "Time from request to its first step")),
        prefill(request_time("request_prefill_time", "Time from first step to first token")),
        decode(request_time("request_decode_time", "Time from first to last token")),
        inference(request_time("request_inference_time", "Time from first step to last token")),
        prompt_tokens(histogram(registry, labels, "refrain:request_prompt_tokens",
                                "Prompt tokens of a request",
                                {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 131072})),
        completion_tokens(histogram(registry, labels, "refrain:request_generation_tokens",
                                    "Generated tokens of a request",
                                    {1, 4, 16, 64, 256, 1024, 4096, 16384})),
        longest_answer(histogram(registry, labels, "refrain:request_max_num_generation_tokens",
                                 "Tokens of a request's longest answer",
                                 {1, 4, 16, 64, 256, 1024, 4096, 16384})),
        http(prometheus::BuildCounter()
                 .Name("refrain:http_responses_total")
                 .Help("HTTP answers by status")
                 .Register(registry)) {}

  // "NAME_seconds"
  prometheus::Histogram& request_time(const char* name, const char* help) {
    const std::string full = std::string("refrain:") + name + "_seconds";
    return histogram(registry, labels, full.c_str(), help,
                     {.001, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300});
  }

  prometheus::Registry registry;
  Labels labels, cache;
  prometheus::Histogram& first_token;
  prometheus::Histogram& inter_token;
  prometheus::Histogram& per_token;
  prometheus::Histogram& end_to_end;
  prometheus::Histogram& queue;
  prometheus::Histogram& prefill;
  prometheus::Histogram& decode;
  prometheus::Histogram& inference;
  prometheus::Histogram& prompt_tokens;
  prometheus::Histogram& completion_tokens;
  prometheus::Histogram& longest_answer;
  prometheus::Family<prometheus::Counter>& http;
  std::atomic<uint64_t> key_limit{0};
};

std::map<std::string, std::string> cache_labels(const EngineConfig& config) {
  const ipc::WorkerConfig& worker = config.worker;
  return {{"block_size", std::to_string(worker.block_size)},
          {"cache_dtype", worker.kv_cache_dtype},
          {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"},
          {"gpu_memory_utilization", fmt::format("{}", worker.gpu_memory_utilization)}};
}

Metrics::Metrics(const std::string& model_name, std::map<std::string, std::string> cache)
    : state_(std::make_unique<State>(model_name, std::move(cache))) {}
Metrics::~Metrics() = default;

void Metrics::observe_tokens(TimePoint begun, TimePoint last_token, TimePoint now, bool first) {
  if (first) {
    state_->first_token.Observe(seconds_between(begun, now));
  } else {
    state_->inter_token.Observe(seconds_between(last_token, now));
  }
}

void Metrics::observe_request(const RequestTimes& times, int64_t prompt_tokens,
                              int64_t completion_tokens) {
  state_->end_to_end.Observe(seconds_between(times.begun, times.ended));
  state_->prompt_tokens.Observe(static_cast<double>(prompt_tokens));
  state_->completion_tokens.Observe(static_cast<double>(completion_tokens));
  if (!times.scheduled || !times.first_token) return;
  const double decode = seconds_between(*times.first_token, times.last_token);
  state_->queue.Observe(seconds_between(times.begun, *times.scheduled));
  state_->prefill.Observe(seconds_between(*times.scheduled, *times.first_token));
  state_->decode.Observe(decode);
  state_->inference.Observe(seconds_between(*times.scheduled, times.last_token));
  const auto tokens = static_cast<double>(times.longest_answer);
  state_->longest_answer.Observe(tokens);
  if (tokens > 1) state_->per_token.Observe(decode / (tokens - 1));
}

void Metrics::count_http(int status) {
  state_->http.Add({{"status", std::to_string(status)}}).Increment();
}

void Metrics::count_key_limit() { ++state_->key_limit; }

std::string Metrics::render(const EngineStats& stats, const AdmissionStats& admission) {
  // The engine's own numbers live in its statistics; a registry of this scrape shows them.
  prometheus::Registry scrape;
  auto gauge = [&](const char* name, const char* help, double value, Labels more = {}) {
    more.insert(state_->labels.begin(), state_->labels.end());
    prometheus::BuildGauge().Name(name).Help(help).Register(scrape).Add(more).Set(value);
  };
  auto counter = [&](const char* name, const char* help, uint64_t value, Labels more = {}) {
    more.insert(state_->labels.begin(), state_->labels.end());
    prometheus::BuildCounter().Name(name).Help(help).Register(scrape).Add(more).Increment(
        static_cast<double>(value));
  };
  gauge("refrain:num_requests_running", "Requests in the batch",
        static_cast<double>(stats.requests_running));
  gauge("refrain:num_requests_waiting", "Requests in the queue",
        static_cast<double>(stats.requests_waiting));
  gauge("refrain:steps_in_flight", "Steps sent to the workers and not answered",
        static_cast<double>(stats.steps_in_flight));
  const double used = stats.blocks_total == 0 ? 0.0
                                              : 1.0 - static_cast<double>(stats.blocks_free) /
                                                          static_cast<double>(stats.blocks_total);
  gauge("refrain:kv_cache_usage_perc", "Share of the KV cache in use", used);
  gauge("refrain:coordinator_us_per_step", "Coordinator CPU a step, microseconds",
        stats.coordinator_us_per_step);
  gauge("refrain:ready", "1 when the worker group serves",
        stats.state == GroupState::kReady ? 1.0 : 0.0);
  counter("refrain:requests_total", "Requests accepted", stats.requests_total);
  const auto ended = [&](const char* reason, uint64_t count) {
    counter("refrain:request_success_total", "Requests ended without an error, by reason", count,
            {{"finished_reason", reason}});
  };
  ended("stop", stats.requests_stopped);
  ended("length", stats.requests_at_length);
  ended("abort", stats.requests_aborted);
  counter("refrain:request_failure_total", "Requests ended by an error", stats.requests_failed);
  counter("refrain:requests_without_logit_total",
          "Requests ended because the model had no finite logit for them",
          stats.requests_without_logit);
  counter("refrain:requests_with_slow_grammar_total",
          "Requests ended because their grammar could not be followed in time",
          stats.requests_with_slow_grammar);
  counter("refrain:requests_resumed_total", "Requests that went on after their workers were lost",
          stats.requests_resumed);
  if (!stats.ready.empty() && stats.ready.front().uniform_query_len > 1) {
    const auto places = static_cast<size_t>(stats.ready.front().uniform_query_len - 1);
    const std::span accepted(stats.drafts.accepted.data(), places);
    counter("refrain:spec_decode_num_drafts_total", "Rows that drafts were proposed for",
            stats.drafts.rows);
    counter("refrain:spec_decode_num_draft_tokens_total", "Drafts proposed", stats.drafts.tokens);
    counter("refrain:spec_decode_num_accepted_tokens_total", "Drafts that were right",
            std::accumulate(accepted.begin(), accepted.end(), uint64_t{0}));
    counter("refrain:jump_forward_tokens_total",
            "Tokens of text that a grammar forced, which took no step of their own",
            stats.drafts.forced);
    for (size_t place = 0; place < places; ++place)
      counter("refrain:spec_decode_num_accepted_tokens_per_pos_total",
              "Drafts that were right, by their place after the last token", accepted[place],
              {{"position", std::to_string(place)}});
  }
  counter("refrain:prompt_tokens_total", "Prompt tokens processed", stats.prompt_tokens);
  counter("refrain:generation_tokens_total", "Tokens generated", stats.generated_tokens);
  counter("refrain:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache",
          stats.prompt_tokens);
  counter("refrain:prefix_cache_hits_total", "Prompt tokens found in the prefix cache",
          stats.cached_prompt_tokens);
  counter("refrain:num_preemptions_total", "Requests preempted", stats.preemptions);
  counter("refrain:steps_total", "Steps run", stats.steps);
  add_step_tokens(scrape, state_->labels, stats.graph_uses);
  Labels cache = state_->cache;
  cache.emplace("num_gpu_blocks", std::to_string(stats.blocks_total));
  gauge("refrain:cache_config_info", "The KV cache, in labels", 1, std::move(cache));
  counter("refrain:cascade_steps_total", "Steps that read a prefix of all their requests once",
          stats.cascade_steps);
  counter("refrain:audit_steps_total", "Steps that ran a second time and were compared",
          stats.audited_steps);
  counter("refrain:audit_differences_total", "Differences beyond the bound that audits found",
          stats.audit_differences);
  gauge("refrain:audit_worst_logit",
        "Worst distance of a logit in an audit, of the largest in its row",
        stats.audit_worst_logit);
  gauge("refrain:audit_worst_kv",
        "Worst distance of a key or value in an audit, of the largest of its token and layer",
        stats.audit_worst_kv);
  counter("refrain:worker_group_restarts_total", "Worker groups lost", stats.group_restarts);
  // One group has no name: its series are those above.
  for (const GroupStats& group : stats.groups) {
    if (stats.groups.size() == 1) break;
    const Labels name = {{"group", std::to_string(group.group)}};
    gauge("refrain:group_ready", "1 when the group serves",
          group.state == GroupState::kReady ? 1.0 : 0.0, name);
    gauge("refrain:group_held", "1 when the group was told to take no requests",
          group.held ? 1.0 : 0.0, name);
    gauge("refrain:group_failed", "1 when the group is not started again",
          group.state == GroupState::kFailed ? 1.0 : 0.0, name);
    counter("refrain:group_restarts_total", "Times the group was lost", group.group_restarts, name);
    gauge("refrain:group_requests_running", "Requests in the group's batch",
          static_cast<double>(group.requests_running), name);
    gauge("refrain:group_requests_waiting", "Requests in the group's queue",
          static_cast<double>(group.requests_waiting), name);
    counter("refrain:group_prompt_tokens_total", "Prompt tokens that the group processed",
            group.prompt_tokens, name);
    counter("refrain:group_generation_tokens_total", "Tokens that the group generated",
            group.generated_tokens, name);
    counter("refrain:group_prefix_cache_hits_total",
            "Prompt tokens found in the group's prefix cache", group.cached_prompt_tokens, name);
    if (group.role == ipc::GroupRole::kBoth) continue;
    const Labels role = {{"group", std::to_string(group.group)},
                         {"role", ipc::to_string(group.role)}};
    const TransferCounts& transfers = group.transfers;
    gauge("refrain:group_kv_leases", "Requests whose blocks the group keeps for a decode group",
          static_cast<double>(group.leases), role);
    counter("refrain:group_kv_leases_expired_total", "Leases that no reader renewed in time",
            group.leases_expired, role);
    gauge("refrain:group_kv_transfers_running",
          "Requests whose blocks are on their way to the group",
          static_cast<double>(transfers.running), role);
    gauge("refrain:group_kv_transfers_quarantined",
          "Transfers that were given up and whose blocks may still be written",
          static_cast<double>(transfers.quarantined), role);
    counter("refrain:group_kv_transfers_total", "Requests that began with blocks of another group",
            transfers.done, role);
    counter("refrain:group_kv_transfers_failed_total",
            "Transfers that were given up; their requests went on another way", transfers.failed,
            role);
    counter("refrain:group_kv_transfer_bytes_total",
            "Bytes of blocks that the group's ranks pulled", transfers.bytes, role);
    counter("refrain:group_kv_transfer_early_bytes_total",
            "Bytes of them that came while the step that computes the prompt still ran",
            transfers.early_bytes, role);
  }
  if (stats.groups.size() > 1 && stats.groups.front().role != ipc::GroupRole::kBoth) {
    gauge("refrain:kv_link_bytes_per_second",
          "Bytes that a transfer between groups moves in a second, as measured (0: not known)",
          stats.kv_link_bytes_per_second);
    counter("refrain:prompts_not_moved_total",
            "Prompts computed where they are answered, as moving their blocks takes longer",
            stats.prompts_not_moved);
  }
  gauge("refrain:predicted_queue_wait_seconds", "Wait for a first token of a request that came now",
        admission.predicted_wait_seconds);
  const char* refused = "Requests refused: the queue is full, the wait too long, the key's limit";
  counter("refrain:requests_refused_total", refused, admission.refused_queue,
          {{"reason", "queue"}});
  counter("refrain:requests_refused_total", refused, admission.refused_wait, {{"reason", "wait"}});
  counter("refrain:requests_refused_total", refused, state_->key_limit, {{"reason", "key"}});
  counter("refrain:requests_late_total", "Requests accepted that waited past their limit",
          admission.late);
  // A series for each captured key and one for steps without a graph; the sizes before padding are
  // thousands, and stand in /cudagraphs.
  std::map<std::tuple<std::string, int32_t, bool>, uint64_t> keys;
  for (const GraphUse& use : stats.graph_uses)
    keys[{use.mode, use.mode == "NONE" ? 0 : use.padded_tokens, use.has_lora}] += use.count;
  for (const auto& [key, count] : keys) {
    const auto& [mode, padded, lora] = key;
    std::map<std::string, std::string> labels = {
        {"mode", mode}, {"padded_tokens", padded == 0 ? "none" : std::to_string(padded)}};
    if (lora) labels["lora"] = "true";
    counter("refrain:cudagraph_dispatch_total", "Steps by runtime mode and padded batch", count,
            labels);
  }
  for (size_t rank = 0; rank < stats.ready.size(); ++rank) {
    const ipc::Ready& ready = stats.ready[rank];
    for (size_t i = 0; i < ready.memory_tags.size() && i < ready.memory_bytes.size(); ++i) {
      gauge("refrain:device_memory_bytes", "Device memory by use",
            static_cast<double>(ready.memory_bytes[i]),
            {{"rank", std::to_string(rank)}, {"use", ready.memory_tags[i]}});
    }
  }
  std::ostringstream text;
  const prometheus::TextSerializer serializer;
  serializer.Serialize(text, state_->registry.Collect());
  serializer.Serialize(text, scrape.Collect());
  return text.str();
}

}  // namespace refrain
