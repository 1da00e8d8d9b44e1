#include "runtime/bench/device_bench.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "runtime/base/check.h"
#include "runtime/base/child_process.h"
#include "runtime/base/report.h"
#include "runtime/base/unique_handle.h"
#include "runtime/bench/bench_report.h"
#include "runtime/bootstrap/check_config.h"
#include "runtime/config/options.h"

namespace refrain {
namespace {

// Kernels are measured on one rank's share; what ranks do together or at once needs them all.
int ranks_of(const BenchOptions& options) {
  const bool all = options.kind == "all-reduce" || options.kind == "load";
  return all ? options.config.worker.tensor_parallel_size : 1;
}

std::vector<int64_t> message_bytes(const BenchOptions& options) {
  if (!options.message_bytes.empty()) return options.message_bytes;
  std::vector<int64_t> sizes;
  for (int64_t bytes = int64_t{1} << 10; bytes <= int64_t{64} << 20; bytes *= 4) {
    sizes.push_back(bytes);
  }
  return sizes;
}

std::vector<std::string> rank_command(const BenchOptions& options, const EngineConfig& config,
                                      const std::string& token, int rank, int result_fd) {
  const auto list = [](const auto& values) { return fmt::format("{}", fmt::join(values, ",")); };
  const ipc::WorkerConfig& worker = config.worker;
  std::vector<std::string> argv = {sibling_program("worker"), "bench", options.kind};
  const auto add = [&](const char* name, const auto& value) {
    argv.insert(argv.end(), {name, fmt::format("{}", value)});
  };
  add("--device", config.device);
  add("--host-threads", config.host_threads);
  add("--rank", rank);
  add("--ranks", ranks_of(options));
  add("--token", token);
  add("--tensor-parallel-size", worker.tensor_parallel_size);
  add("--dtype", worker.dtype);
  add("--kv-cache-dtype", worker.kv_cache_dtype);
  add("--attention-backend", worker.attention_backend);
  add("--block-size", worker.block_size);
  add("--max-model-len", worker.max_model_len);
  add("--max-num-seqs", worker.max_num_seqs);
  add("--seed", worker.seed);
  add("--batch", list(options.batches));
  add("--context", list(options.contexts));
  add("--lengths", list(options.lengths));
  add("--shared-prefix", options.shared_prefix);
  add("--message-bytes", list(message_bytes(options)));
  add("--runs", options.runs);
  add("--pool-bytes", int64_t{options.pool_mib} << 20);
  add("--result-fd", result_fd);
  add("--log-level", config.log_level);
  add("--parent", ::getpid());
  if (!config.model.empty()) add("--model", config.model);
  if (!config.host_isa.empty()) add("--host-isa", config.host_isa);
  if (worker.load_dummy) argv.emplace_back("--load-dummy");
  return argv;
}

// All that the ranks write, until the last of them has ended.
Result<std::string> read_all(int fd) {
  std::string text;
  char block[4096];
  while (true) {
    const ssize_t got = ::read(fd, block, sizeof block);
    if (got == 0) return text;
    if (got > 0) {
      text.append(block, static_cast<size_t>(got));
    } else if (errno != EINTR) {
      return fail(ErrorCode::kInternal, "reading the ranks' cases: {}", std::strerror(errno));
    }
  }
}

BenchCase case_of(const Json& line, const std::string& model) {
  BenchCase row;
  row.name = line.at("name").get<std::string>();
  row.unit = line.at("unit").get<std::string>();
  row.samples = line.at("samples").get<std::vector<double>>();
  row.achieved = line.at("achieved").get<double>();
  row.limit = line.at("limit").get<double>();
  row.limit_source = line.at("limit_source").get<std::string>();
  row.more = line.at("more");
  row.more["model"] = model.empty() ? Json(nullptr) : Json(model);
  return row;
}

Result<std::vector<BenchCase>> parse_cases(const std::string& text, const std::string& model) {
  std::vector<BenchCase> cases;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    REFRAIN_ASSIGN_OR_RETURN(const Json line, parse_json(text.substr(begin, end - begin)));
    cases.push_back(case_of(line, model));
  }
  return cases;
}

// Completes the configuration; sums over ranks need no model.
Status prepare(const BenchOptions& options, EngineConfig& config) {
  if (options.kind == "all-reduce" && config.model.empty()) {
    finish_host_threads(config);
    return {};
  }
  if (config.model.empty()) return fail_field("--model", "no model given; use --model DIRECTORY");
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(config.model));
  return check_config(config, model);
}

struct Ended {
  std::string text;  // of the cases
  int code = kExitOk;
};

Result<Ended> run_ranks(const BenchOptions& options, const EngineConfig& config) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return fail(ErrorCode::kUnavailable, "no pipe for the cases: {}", std::strerror(errno));
  }
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const std::string token = fmt::format("bench-{}-{:08x}", ::getpid(), std::random_device{}());
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < ranks_of(options); ++rank) {
    REFRAIN_ASSIGN_OR_RETURN(
        ChildProcess child,
        ChildProcess::spawn(rank_command(options, config, token, rank, to.get()), {to.get()}));
    ranks.push_back(std::move(child));
  }
  to = UniqueFd();
  Ended ended;
  REFRAIN_ASSIGN_OR_RETURN(ended.text, read_all(from.get()));
  for (ChildProcess& rank : ranks) {
    const ChildProcess::End end = rank.reap();
    if (ended.code == kExitOk) ended.code = end.signal != 0 ? kExitInternal : end.code;
  }
  return ended;
}

}  // namespace

bool is_device_bench(const std::string& kind) {
  return kind == "gemm" || kind == "attention" || kind == "all-reduce" || kind == "load";
}

std::vector<int32_t> default_batches(const std::string& kind) {
  if (kind == "gemm") return {1, 8, 16, 64, 256, 1024, 4096};
  return {1, 8, 32};
}

int run_device_bench(const BenchOptions& options) {
  EngineConfig config = options.config;
  for (const int64_t bytes : options.message_bytes) {
    if (bytes % 2 == 0) continue;
    return report(
        {ErrorCode::kInvalidArgument,
         fmt::format("--message-bytes {} is not a multiple of 2: messages are of bfloat16", bytes),
         "--message-bytes"});
  }
  if (options.kind == "all-reduce" && options.config.worker.tensor_parallel_size < 2) {
    return report({ErrorCode::kInvalidArgument,
                   "sums over ranks need --tensor-parallel-size 2 or more",
                   "--tensor-parallel-size"});
  }
  if (const Status ready = prepare(options, config); !ready) return report(ready.error());
  const auto ended = run_ranks(options, config);
  if (!ended) return report(ended.error());
  if (ended->code != kExitOk) return ended->code;  // the ranks have said why
  const std::string name =
      config.served_model_names.empty() ? std::string() : config.served_model_names.front();
  const auto cases = parse_cases(ended->text, name);
  if (!cases) return report(cases.error());
  print_cases(*cases, options.json);
  return kExitOk;
}

}  // namespace refrain
