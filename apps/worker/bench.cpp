#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/worker/commands.h"
#include "runtime/base/log.h"
#include "runtime/config/options.h"
#include "worker/bench/rank.h"

namespace refrain {
namespace {

struct BenchArguments {
  worker::RankOptions rank;
  std::string model, log_level = "warning";
  pid_t parent = 0;  // 0: none to die with
};

void add_options(CLI::App& app, BenchArguments& arguments) {
  worker::RankOptions& rank = arguments.rank;
  ipc::WorkerConfig& config = rank.config;
  app.add_option("kind", rank.kind, "gemm, attention, all-reduce or load")->required();
  app.add_option("--model", arguments.model, "Model directory");
  app.add_option("--device", rank.device, "auto, host or cuda");
  app.add_option("--host-threads", rank.host.threads, "Threads of the host device");
  app.add_option("--host-isa", rank.host.isa, "Instruction set of the host device");
  app.add_option("--rank", rank.rank, "This process's rank");
  app.add_option("--ranks", rank.ranks, "Processes of this run");
  app.add_option("--token", rank.token, "Name of their group");
  app.add_option("--tensor-parallel-size", config.tensor_parallel_size, "Shares of the model");
  app.add_option("--dtype", config.dtype, "Activations: bfloat16 or float32");
  app.add_option("--kv-cache-dtype", config.kv_cache_dtype, "auto, bfloat16 or float32");
  app.add_option("--attention-backend", config.attention_backend, "auto: all of the device");
  app.add_option("--block-size", config.block_size, "Tokens of a KV block");
  app.add_option("--max-model-len", config.max_model_len, "Rows of the RoPE table");
  app.add_option("--max-num-seqs", config.max_num_seqs, "Rows of the logits at most");
  app.add_option("--seed", config.seed, "Of made-up weights");
  app.add_flag("--load-dummy", config.load_dummy, "Made-up weights");
  app.add_option("--batch", rank.batches, "Rows, or requests")->delimiter(',');
  app.add_option("--context", rank.contexts, "attention: tokens of a decoding request")
      ->delimiter(',');
  app.add_option("--shared-prefix", rank.shared_prefix, "attention: tokens of all requests");
  app.add_option("--lengths", rank.lengths, "attention: tokens of a prompt")->delimiter(',');
  app.add_option("--message-bytes", rank.messages, "all-reduce: message sizes")->delimiter(',');
  app.add_option("--runs", rank.runs, "Samples of a case");
  app.add_option("--pool-bytes", rank.pool_bytes, "Memory that weights and caches take turns in");
  app.add_option("--result-fd", rank.result_fd, "Where the cases go");
  app.add_option("--log-level", arguments.log_level, "trace, debug, info, warning, error, off");
  app.add_option("--parent", arguments.parent, "Process to die with");
}

}  // namespace

int bench_command(const std::vector<std::string>& given) {
  BenchArguments arguments;
  CLI::App app("Measures one rank's kernels, sums over ranks or loading.", "worker bench");
  add_options(app, arguments);
  const auto parsed = parse_command_line(app, given);
  if (parsed && parsed->exit_now) return kExitOk;
  init_logging(fmt::format("bench {}", arguments.rank.rank), arguments.log_level);
  arguments.rank.model = arguments.model;
  if (!die_with(arguments.parent)) return kExitTryAgain;
  const Status status = parsed ? worker::run_rank(arguments.rank) : forward_error(parsed.error());
  if (status) return kExitOk;
  const Error& error = status.error();
  std::fprintf(stderr, "worker bench: %s%s%s\n", error.field.c_str(),
               error.field.empty() ? "" : ": ", error.message.c_str());
  return exit_code(error.code);
}

}  // namespace refrain
