#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "apps/refrain/commands.h"
#include "runtime/base/json.h"
#include "runtime/base/report.h"
#include "runtime/config/options.h"
#include "runtime/plan/plan.h"

namespace refrain {
namespace {

using PlanJson = nlohmann::ordered_json;

constexpr const char* kPlanHelp =
    "usage: refrain plan FILE.json   (-: standard input)\n"
    "\n"
    "Prints which graphs a configuration captures, and which of them each batch runs. The file is\n"
    "either a file of options as `refrain serve --config` takes it (configs/engine), or an object\n"
    "with these fields, all of which may be left out:\n"
    "  cudagraph_mode, cudagraph_capture_sizes, max_cudagraph_capture_size, max_num_seqs,\n"
    "  max_num_batched_tokens, num_speculative_tokens, uniform_query_lens, enforce_eager,\n"
    "  disable_padding, max_padding_ratio, lora, attention_support, piecewise_available,\n"
    "  batches: [{\"query_lens\": [1, 1], \"context_lens\": [7, 9], \"cascade\": false}]\n"
    "A file of options may have `batches` too. Exit code 2: a field is wrong; 64: no such file.\n";

// The options of `refrain serve` as a file gives them: "max-num-seqs", "$schema", …
bool is_option_file(const PlanJson& json) {
  if (!json.is_object()) return false;
  for (const auto& [key, value] : json.items()) {
    if (key == "$schema" || key == "model" || key.find('-') != std::string::npos) return true;
  }
  return false;
}

Result<std::string> explain_option_file(const std::string& path, PlanJson json) {
  const PlanJson batches = json.value("batches", PlanJson::array());
  json.erase("batches");
  REFRAIN_ASSIGN_OR_RETURN(auto words, config_arguments(json.dump(), path));
  EngineConfig config;
  CLI::App app;
  add_engine_options(app, config, {});
  REFRAIN_RETURN_IF_ERROR(parse_command_line(app, std::move(words)));
  return explain_plan(config.worker, batches.dump());
}

}  // namespace

int plan_command(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 || arguments[0] == "--help" || arguments[0] == "-h") {
    const bool asked = arguments.size() == 1;
    std::fputs(kPlanHelp, asked ? stdout : stderr);
    return asked ? kExitOk : kExitConfig;
  }
  std::stringstream text;
  if (arguments[0] == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(arguments[0]);
    if (!file) {
      return report({ErrorCode::kNotFound, fmt::format("{} cannot be read", arguments[0]), {}});
    }
    text << file.rdbuf();
  }
  const PlanJson json = PlanJson::parse(text.str(), nullptr, /*allow_exceptions=*/false, true);
  const auto plan =
      is_option_file(json) ? explain_option_file(arguments[0], json) : explain_plan(text.str());
  if (!plan) {
    std::printf("%s\n", plan_error(plan.error()).c_str());
    return kExitBadPlan;
  }
  std::printf("%s\n", plan->c_str());
  return kExitOk;
}

}  // namespace refrain
