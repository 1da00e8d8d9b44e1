// bench: what `refrain bench` runs.

#include <CLI/CLI.hpp>
#include <exception>

#include "apps/bench/load.h"
#include "runtime/base/last_error.h"
#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/bench/bench.h"
#include "runtime/bench/device_bench.h"
#include "runtime/bench/dispatch_bench.h"
#include "runtime/config/options.h"

namespace refrain {
namespace {

int engine_command(const std::vector<std::string>& arguments) {
  BenchOptions options;
  CLI::App app("Measures an engine end to end, or what its device does alone.", "refrain bench");
  options.config.log_level = "warning";
  add_engine_options(app, options.config, {.server = false, .positional_model = false});
  const char* group = "Benchmark";
  const CLI::Range count(1, 1 << 20);
  app.add_option("kind", options.kind,
                 "decode, prefill, serve, capture, dispatch, gemm, attention, all-reduce or load")
      ->required()
      ->check(CLI::IsMember({"decode", "prefill", "serve", "capture", "dispatch", "gemm",
                             "attention", "all-reduce", "load"}))
      ->group(group);
  app.add_flag("--json", options.json, "A list of JSON objects instead of a table")->group(group);
  app.add_option("--batch", options.batches, "decode, attention: requests, gemm: rows, e.g. 1,8,32")
      ->delimiter(',')
      ->check(count)
      ->group(group);
  app.add_option("--lengths", options.lengths, "prefill, attention: prompt lengths")
      ->delimiter(',')
      ->check(count)
      ->group(group);
  app.add_option("--context", options.contexts, "attention: tokens of a decoding request")
      ->delimiter(',')
      ->check(count)
      ->group(group);
  app.add_option("--shared-prefix", options.shared_prefix,
                 "attention: of these so many are the same for all; also with cascade attention")
      ->check(CLI::Range(0, 1 << 20))
      ->group(group);
  app.add_option("--message-bytes", options.message_bytes,
                 "all-reduce: bytes, multiples of 2 (1 KiB to 64 MiB in powers of four)")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 30))
      ->group(group);
  app.add_option("--pool-mib", options.pool_mib,
                 "gemm, attention, load: memory that weights and caches take turns in")
      ->check(CLI::Range(1, 1 << 16))
      ->group(group);
  app.add_option("--prompt-len", options.prompt_len, "Tokens of a prompt")
      ->check(count)
      ->group(group);
  app.add_option("--first-tokens", options.first_tokens, "decode: shorter run")
      ->check(count)
      ->group(group);
  app.add_option("--last-tokens", options.last_tokens, "decode: longer run")
      ->check(count)
      ->group(group);
  app.add_option("--runs", options.runs, "Repeats of each case")
      ->check(CLI::Range(1, 1000))
      ->group(group);
  app.add_option("--num-requests", options.num_requests, "serve: requests")
      ->check(count)
      ->group(group);
  app.add_option("--request-rate", options.request_rate,
                 "serve: arrivals a second (0: all at once)")
      ->check(CLI::Range(0.0, 1e6))
      ->group(group);
  app.add_option("--output-len", options.output_len, "serve: tokens a request")
      ->check(count)
      ->group(group);
  app.add_option("--modes", options.modes, "Graph modes to compare, e.g. NONE,FULL")
      ->delimiter(',')
      ->group(group);
  const auto parsed = parse_command_line(app, arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  init_logging("refrain", options.config.log_level);
  if (options.last_tokens <= options.first_tokens) {
    return report({ErrorCode::kInvalidArgument, "--last-tokens must be more than --first-tokens",
                   "--last-tokens"});
  }
  if (options.kind == "dispatch") return run_dispatch_bench(options);
  if (!is_device_bench(options.kind)) return run_bench(options);
  if (app.count("--batch") == 0) options.batches = default_batches(options.kind);
  return run_device_bench(options);
}

}  // namespace
}  // namespace refrain

int main(int argc, char** argv) {
  using namespace refrain;
  end_by_what_is_lacking();
  init_logging("refrain");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    return is_load(arguments) ? load_command(arguments) : engine_command(arguments);
  } catch (const std::exception& error) {
    return end_by(error);
  }
}
