#include "runtime/load/load_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/config/option_values.h"

namespace refrain {
namespace {

constexpr int64_t kMost = int64_t{1} << 24;

void add_server(CLI::App& app, LoadOptions& options) {
  const char* group = "Server";
  app.add_option("--base-url", options.base_url, "http[s]://HOST[:PORT] of the server")
      ->required()
      ->group(group);
  app.add_option("--endpoint", options.endpoint,
                 "Route; /v1/chat/completions sends chats of one message")
      ->capture_default_str()
      ->group(group);
  app.add_option("--model", options.model, "Model to ask for (default: the server's first)")
      ->group(group);
  app.add_option("--api-key", options.api_key, "Key sent as Bearer")
      ->envname("OPENAI_API_KEY")
      ->group(group);
  app.add_option("--extra-body", options.extra_body, "JSON object that goes into every request")
      ->group(group);
  app.add_option("--temperature", options.temperature, "Of every request")
      ->check(number_in(0.0, 100.0))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--ignore-eos", options.ignore_eos, "Answers of exactly the tokens asked for")
      ->group(group);
  app.add_option("--request-timeout", options.request_timeout, "Seconds of a whole request")
      ->check(number_in(0.001, 1e6))
      ->capture_default_str()
      ->group(group);
  app.add_option("--client-threads", options.threads, "Threads that send and read")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group(group);
}

void add_dataset(CLI::App& app, LoadOptions& options) {
  const char* group = "Requests";
  const CLI::Range count(int64_t{1}, kMost);
  const auto length = [&](const char* name, int64_t& value, const char* what) {
    app.add_option(name, value, what)->check(count)->capture_default_str()->group(group);
  };
  app.add_option("--dataset-name", options.dataset,
                 "sharegpt (lengths like its conversations', or its file), random, "
                 "prefix_repetition (or prefix), custom (JSON lines)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, std::string>{{"prefix", "prefix_repetition"},
                                             {"prefix_repetition", "prefix_repetition"},
                                             {"sharegpt", "sharegpt"},
                                             {"random", "random"},
                                             {"custom", "custom"}},
          CLI::ignore_case))
      ->capture_default_str()
      ->group(group);
  app.add_option("--dataset-path", options.dataset_path,
                 "File of --dataset-name custom or sharegpt")
      ->group(group);
  length("--num-prompts", options.num_prompts, "Requests to send");
  app.add_option("--num-warmups", options.num_warmups,
                 "Requests to send before, which are not measured")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", options.seed, "Of lengths, tokens and arrivals")
      ->capture_default_str()
      ->group(group);
  app.add_option("--prompts", options.prompts, "Made-up prompts go as token_ids or as text")
      ->check(CLI::IsMember({"token_ids", "text"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--tokenizer", options.tokenizer,
                 "Model directory: text prompts get exactly their length, and ShareGPT's file its "
                 "lengths (default: about one word a token)")
      ->group(group);
  app.add_option("--vocab-size", options.vocab_size, "Made-up token ids are below it")
      ->check(CLI::Range(int64_t{11}, kMost))
      ->capture_default_str()
      ->group(group);
  length("--random-input-len", options.random_input_len, "random: tokens of a prompt");
  length("--random-output-len", options.random_output_len, "random: tokens of an answer");
  app.add_option("--random-range-ratio", options.random_range_ratio,
                 "random: lengths are spread by that share to both sides")
      ->check(number_in(0.0, 0.999))
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-prefix-len", options.random_prefix_len,
                 "random, sharegpt without a file: tokens that all prompts begin with, on top")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str()
      ->group(group);
  length("--prefix-repetition-prefix-len", options.prefix_len, "prefix_repetition: shared tokens");
  length("--prefix-repetition-suffix-len", options.prefix_suffix_len,
         "prefix_repetition: a prompt's own tokens");
  length("--prefix-repetition-num-prefixes", options.prefix_num_prefixes,
         "prefix_repetition: different prefixes, used in turn");
  length("--prefix-repetition-output-len", options.prefix_output_len,
         "prefix_repetition: tokens of an answer");
  app.add_option("--sharegpt-output-len", options.sharegpt_output_len,
                 "sharegpt with a file: tokens of an answer (default: its own answer's)")
      ->check(count)
      ->group(group);
  length("--custom-output-len", options.custom_output_len,
         "custom: tokens of an answer, where a line does not say it");
}

void add_arrivals(CLI::App& app, LoadOptions& options) {
  const char* group = "Arrivals";
  app.add_option("--request-rate", options.request_rate, "Requests a second (inf: all at once)")
      ->check(number_in(1e-6, kNoRate))
      ->capture_default_str()
      ->group(group);
  app.add_option("--burstiness", options.burstiness,
                 "1: Poisson arrivals; less: in bursts; more: evener")
      ->check(number_in(1e-3, 1e6))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-concurrency", options.max_concurrency,
                 "Most requests under way (default: no limit)")
      ->check(CLI::Range(int64_t{1}, kMost))
      ->group(group);
  app.add_option(
         "--ramp-up-strategy", options.ramp_up_strategy,
         "linear or exponential: the rate goes from --ramp-up-start-rps to --ramp-up-end-rps")
      ->check(CLI::IsMember({"linear", "exponential"}))
      ->group(group);
  app.add_option("--ramp-up-start-rps", options.ramp_up_start_rps, "First rate of the ramp")
      ->check(number_in(1e-6, 1e9))
      ->group(group);
  app.add_option("--ramp-up-end-rps", options.ramp_up_end_rps, "Last rate of the ramp")
      ->check(number_in(1e-6, 1e9))
      ->group(group);
}

// ttft:200 -> ttft, 200.
void add_goals(const std::vector<std::string>& words, std::map<std::string, double>& goals) {
  for (const std::string& word : words) {
    const size_t colon = word.find(':');
    const std::string key = word.substr(0, colon);
    double most = -1;
    const bool number =
        colon != std::string::npos && CLI::detail::lexical_cast(word.substr(colon + 1), most);
    if ((key != "ttft" && key != "tpot" && key != "e2el") || !number || !(most >= 0)) {
      throw CLI::ValidationError(
          "--goodput", fmt::format("\"{}\" is no goal: ttft, tpot or e2el, a colon and the most "
                                   "milliseconds, e.g. ttft:200 tpot:15",
                                   word));
    }
    goals[key] = most;
  }
}

void add_results(CLI::App& app, LoadOptions& options) {
  const char* group = "Results";
  app.add_option_function<std::vector<std::string>>(
         "--goodput",
         [&options](const std::vector<std::string>& words) { add_goals(words, options.goodput); },
         "Goals that a good request meets, in milliseconds, e.g. ttft:200 tpot:15 e2el:5000")
      ->group(group);
  app.add_option("--percentile-metrics", options.percentile_metrics,
                 "Times to show: ttft, tpot, itl, e2el")
      ->delimiter(',')
      ->check(CLI::IsMember({"ttft", "tpot", "itl", "e2el"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--metric-percentiles", options.metric_percentiles, "Of these times, e.g. 90,99")
      ->delimiter(',')
      ->check(number_in(0.0, 100.0))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--json", options.json, "JSON instead of the table")->group(group);
  app.add_flag("--save-result", options.save_result, "Write the JSON to a file")->group(group);
  app.add_flag("--save-detailed", options.save_detailed, "The file holds every request's times")
      ->group(group);
  app.add_option("--result-filename", options.result_filename, "Name of that file")->group(group);
  app.add_option("--result-dir", options.result_dir, "Folder of that file")->group(group);
  app.add_option("--plot", options.plot, "Draw times and tokens over time into this SVG file")
      ->group(group);
}

}  // namespace

void add_load_options(CLI::App& app, LoadOptions& options) {
  add_server(app, options);
  add_dataset(app, options);
  add_arrivals(app, options);
  add_results(app, options);
}

Status finish_load_options(LoadOptions& options) {
  if (options.is_chat()) options.prompts = "text";  // a chat has no token ids
  if (!options.endpoint.starts_with('/')) {
    return fail_field("--endpoint", "--endpoint must begin with /, not: {}", options.endpoint);
  }
  if (options.dataset == "custom" && options.dataset_path.empty()) {
    return fail_field("--dataset-path", "--dataset-name custom needs --dataset-path FILE");
  }
  if (options.dataset != "custom" && options.dataset != "sharegpt" &&
      !options.dataset_path.empty()) {
    return fail_field("--dataset-path", "--dataset-path: --dataset-name {} reads no file",
                      options.dataset);
  }
  if (!options.ramp_up_strategy.empty() && options.ramp_up_end_rps == 0) {
    return fail_field("--ramp-up-end-rps", "--ramp-up-strategy needs --ramp-up-end-rps");
  }
  if (!options.ramp_up_strategy.empty() && std::isfinite(options.request_rate)) {
    return fail_field("--request-rate", "--request-rate and --ramp-up-strategy exclude each other");
  }
  if (!options.result_filename.empty() || options.save_detailed) options.save_result = true;
  if (!nlohmann::json::parse(options.extra_body, nullptr, false).is_object()) {
    return fail_field("--extra-body", "--extra-body is no JSON object: {}", options.extra_body);
  }
  return {};
}

}  // namespace refrain
