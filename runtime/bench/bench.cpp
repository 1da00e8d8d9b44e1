#include "runtime/bench/bench.h"

#include <cstdio>
#include <random>
#include <thread>

#include "runtime/base/build_info.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/bench/bench_report.h"
#include "runtime/config/options.h"
#include "runtime/load/server_counters.h"
#include "runtime/offline/local_engine.h"

namespace refrain {
namespace {

using SteadyTime = std::chrono::steady_clock;

double ms_since(SteadyTime::time_point begun) {
  return std::chrono::duration<double, std::milli>(SteadyTime::now() - begun).count();
}

// Random prompts, so that no prefix is shared; ends only by length.
std::vector<GenerateRequest> random_requests(int64_t vocab, int count, int prompt_len,
                                             int output_len, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<TokenId> token(0, static_cast<TokenId>(vocab - 1));
  std::vector<GenerateRequest> requests(static_cast<size_t>(count));
  for (GenerateRequest& request : requests) {
    for (int i = 0; i < prompt_len; ++i) request.prompt.push_back(token(random));
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = output_len;
  }
  return requests;
}

int64_t weight_bytes(const EngineStats& stats) {
  int64_t bytes = 0;
  for (const ipc::Ready& ready : stats.ready) {
    for (size_t i = 0; i < ready.memory_tags.size(); ++i) {
      if (ready.memory_tags[i] == "weights") bytes += ready.memory_bytes[i];
    }
  }
  return bytes;
}

class Bench {
 public:
  Bench(const BenchOptions& options, LocalEngine& local) : options_(options), local_(local) {
    stats_ = local.engine().stats();
    threads_ = local.config().host_threads * local.config().worker.tensor_parallel_size;
  }

  Status decode(std::vector<BenchCase>& cases);
  Status prefill(std::vector<BenchCase>& cases);
  Status serve(std::vector<BenchCase>& cases);
  void capture(std::vector<BenchCase>& cases);

 private:
  // "host" of "host (avx512, 2 threads)".
  std::string device_kind() const {
    const std::string name = stats_.devices.empty() ? "" : stats_.devices.front();
    return name.substr(0, name.find(' '));
  }

  BenchCase new_case(const char* name, const char* unit) const {
    BenchCase result;
    result.name = name;
    result.unit = unit;
    result.more = {{"model", local_.config().served_model_names.front()},
                   {"device", device_kind()},
                   {"device_name", stats_.devices.empty() ? "" : stats_.devices.front()},
                   {"tp", local_.config().worker.tensor_parallel_size},
                   {"dtype", local_.config().worker.dtype},
                   {"host_threads", local_.config().host_threads},
                   {"build", build_id()},
                   {"mode", stats_.ready.empty() ? "" : stats_.ready.front().cudagraph_mode}};
    return result;
  }

  Result<double> timed_run(int batch, int prompt_len, int output_len) {
    auto requests =
        random_requests(local_.engine().model().vocab_size, batch, prompt_len, output_len, ++seed_);
    const auto begun = SteadyTime::now();
    REFRAIN_ASSIGN_OR_RETURN(const auto outputs, local_.run(std::move(requests)));
    const double ms = ms_since(begun);
    for (const RequestOutput& output : outputs) {
      REFRAIN_CHECK(static_cast<int>(output.tokens.size()) == output_len,
                    "a benchmark request gave {} of {} tokens", output.tokens.size(), output_len);
    }
    return ms;
  }

  double bandwidth() {
    if (bandwidth_ == 0) bandwidth_ = measure_read_bandwidth(threads_);
    return bandwidth_;
  }

  const BenchOptions& options_;
  LocalEngine& local_;
  EngineStats stats_;
  int threads_ = 1;
  double bandwidth_ = 0;
  uint64_t seed_ = 0;
};

Status Bench::decode(std::vector<BenchCase>& cases) {
  for (const int batch : options_.batches) {
    BenchCase row = new_case("decode", "ms_per_step");
    REFRAIN_ASSIGN_OR_RETURN(const double warm_up, timed_run(batch, options_.prompt_len, 4));
    log::debug("warm-up {:.1f} ms", warm_up);
    for (int run = 0; run < options_.runs; ++run) {
      REFRAIN_ASSIGN_OR_RETURN(const double first,
                               timed_run(batch, options_.prompt_len, options_.first_tokens));
      REFRAIN_ASSIGN_OR_RETURN(const double last,
                               timed_run(batch, options_.prompt_len, options_.last_tokens));
      row.samples.push_back((last - first) / (options_.last_tokens - options_.first_tokens));
    }
    const double ms = percentile(row.samples, 0.5);
    row.more["batch"] = batch;
    row.more["context"] = options_.prompt_len + (options_.first_tokens + options_.last_tokens) / 2;
    row.more["tokens_per_s"] = 1000.0 * batch / ms;
    if (device_kind() == "host") {
      row.achieved = static_cast<double>(weight_bytes(stats_)) / ms * 1e3;
      row.limit = bandwidth();
      row.limit_source = fmt::format("memory read by {} threads, measured", threads_);
    }
    cases.push_back(std::move(row));
  }
  return {};
}

Status Bench::prefill(std::vector<BenchCase>& cases) {
  for (const int length : options_.lengths) {
    BenchCase row = new_case("prefill", "tokens_per_s");
    std::vector<double> first_token_ms;
    REFRAIN_ASSIGN_OR_RETURN(const double warm_up, timed_run(1, length, 1));
    log::debug("warm-up {:.1f} ms", warm_up);
    for (int run = 0; run < options_.runs; ++run) {
      REFRAIN_ASSIGN_OR_RETURN(const double ms, timed_run(1, length, 1));
      first_token_ms.push_back(ms);
      row.samples.push_back(1000.0 * length / ms);
    }
    row.more["batch"] = 1;
    row.more["context"] = length;
    row.more["ttft_ms"] = percentile(first_token_ms, 0.5);
    cases.push_back(std::move(row));
  }
  return {};
}

Status Bench::serve(std::vector<BenchCase>& cases) {
  const int count = options_.num_requests;
  auto requests = random_requests(local_.engine().model().vocab_size, count, options_.prompt_len,
                                  options_.output_len, 77);
  struct Times {
    std::mutex mutex;
    std::condition_variable done;
    std::vector<SteadyTime::time_point> sent, last;
    std::vector<double> ttft, itl, total;
    std::optional<Error> error;
    int unfinished;
  };
  auto times = std::make_shared<Times>();
  times->sent.resize(static_cast<size_t>(count));
  times->last.resize(static_cast<size_t>(count));
  times->unfinished = count;
  std::mt19937_64 random(5);
  std::exponential_distribution<double> gap(options_.request_rate > 0 ? options_.request_rate : 1);
  const auto begun = SteadyTime::now();
  auto next = begun;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (options_.request_rate > 0) {
      next += std::chrono::duration_cast<SteadyTime::duration>(
          std::chrono::duration<double>(gap(random)));
      std::this_thread::sleep_until(next);
    }
    times->sent[i] = SteadyTime::now();
    auto id =
        local_.engine().submit(std::move(requests[i]), [times, i](const RequestOutput& output) {
          const auto now = SteadyTime::now();
          const std::lock_guard lock(times->mutex);
          const bool first = times->last[i] == SteadyTime::time_point{};
          auto ms = [](auto from, auto to) {
            return std::chrono::duration<double, std::milli>(to - from).count();
          };
          if (!output.tokens.empty()) {
            if (first) times->ttft.push_back(ms(times->sent[i], now));
            if (!first) times->itl.push_back(ms(times->last[i], now));
            times->last[i] = now;
          }
          if (output.error) times->error = output.error;
          if (output.finish != FinishReason::kNone) {
            times->total.push_back(ms(times->sent[i], now));
            --times->unfinished;
          }
          if (times->unfinished == 0 || times->error) times->done.notify_all();
        });
    if (!id) return forward_error(id.error());
  }
  std::unique_lock lock(times->mutex);
  times->done.wait(lock, [&] { return times->unfinished == 0 || times->error; });
  if (times->error) return forward_error(*times->error);
  const double seconds = ms_since(begun) / 1e3;
  BenchCase row = new_case("serve", "itl_ms");
  row.samples = times->itl;
  row.more["batch"] = count;
  row.more["context"] = options_.prompt_len + options_.output_len / 2;
  row.more["request_rate"] = options_.request_rate;
  row.more["requests_per_s"] = count / seconds;
  row.more["tokens_per_s"] = count * options_.output_len / seconds;
  row.more["ttft_ms_median"] = percentile(times->ttft, 0.5);
  row.more["ttft_ms_p99"] = percentile(times->ttft, 0.99);
  row.more["e2e_ms_median"] = percentile(times->total, 0.5);
  row.more["e2e_ms_p99"] = percentile(times->total, 0.99);
  row.more["coordinator_us_per_step"] = local_.engine().stats().coordinator_us_per_step;
  cases.push_back(std::move(row));
  return {};
}

void Bench::capture(std::vector<BenchCase>& cases) {
  for (size_t rank = 0; rank < stats_.ready.size(); ++rank) {
    const ipc::Ready& ready = stats_.ready[rank];
    BenchCase row = new_case("capture", "ms_per_graph");
    int64_t bytes = 0, nodes = 0;
    double total_ms = 0;
    for (const ipc::ManifestEntry& entry : ready.manifest) {
      row.samples.push_back(entry.capture_ms);
      total_ms += entry.capture_ms;
      bytes += entry.bytes;
      nodes += entry.nodes;
    }
    row.more["ms_per_step"] = percentile(row.samples, 0.5);  // a step here: one key captured
    row.more["rank"] = rank;
    row.more["graphs"] = ready.manifest.size();
    row.more["nodes"] = nodes;
    row.more["bytes"] = bytes;
    row.more["total_ms"] = total_ms;
    row.more["arena_bytes"] = ready.arena_bytes;
    cases.push_back(std::move(row));
  }
}

// figures of a run in which the workers failed are no figures.
Status check_undisturbed(const EngineStats& stats) {
  return undisturbed({}, {stats.group_restarts, stats.requests_resumed,
                          stats.requests_without_logit, stats.audit_differences});
}

// More rows than run at once would wait, and the figures would be of something else.
Status check_batches(const BenchOptions& options) {
  const int32_t most = max_num_seqs(options.config);
  for (const int32_t batch : options.kind == "decode" ? options.batches : std::vector<int32_t>()) {
    if (batch > most) {
      return fail_field("--batch", "--batch {} is more than --max-num-seqs {}", batch, most);
    }
  }
  return {};
}

Status measure(const BenchOptions& options, const std::string& mode,
               std::vector<BenchCase>& cases) {
  EngineConfig config = options.config;
  config.enable_prefix_caching = false;
  if (!mode.empty()) config.worker.cudagraph_mode = mode;
  REFRAIN_ASSIGN_OR_RETURN(auto local, LocalEngine::create(config));
  REFRAIN_RETURN_IF_ERROR(local->start());
  Bench bench(options, *local);
  Status measured;
  if (options.kind == "decode") {
    measured = bench.decode(cases);
  } else if (options.kind == "prefill") {
    measured = bench.prefill(cases);
  } else if (options.kind == "serve") {
    measured = bench.serve(cases);
  } else {
    bench.capture(cases);
  }
  REFRAIN_RETURN_IF_ERROR(measured);
  return check_undisturbed(local->engine().stats());
}

}  // namespace

int run_bench(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  std::vector<std::string> modes = options.modes;
  if (modes.empty()) modes.emplace_back();
  if (Status status = check_batches(options); !status) return report(status.error());
  for (const std::string& mode : modes) {
    if (Status status = measure(options, mode, cases); !status) return report(status.error());
  }
  print_cases(cases, options.json);
  return kExitOk;
}

}  // namespace refrain
