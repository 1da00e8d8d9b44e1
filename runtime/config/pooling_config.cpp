#include "runtime/config/pooling_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "ipc/protocol/limits.h"
#include "runtime/base/log.h"
#include "runtime/config/model/model_config_fields.h"

namespace refrain {
namespace {

namespace fs = std::filesystem;

// What is said of pooling: by the model's folder, or by the option, which wins.
struct Pooler {
  std::optional<std::string> type;
  std::optional<bool> normalize;
  std::optional<int64_t> dimensions;
};

// 1_Pooling/config.json: exactly one of its modes is on.
Result<std::string> read_pooling_mode(const fs::path& file) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string text, read_small_file(file));
  REFRAIN_ASSIGN_OR_RETURN(const auto json, parse_json_object(text, file.string()));
  static constexpr std::pair<const char*, const char*> kModes[] = {
      {"pooling_mode_lasttoken", "LAST"},
      {"pooling_mode_mean_tokens", "MEAN"},
      {"pooling_mode_cls_token", "CLS"}};
  std::string type;
  for (const auto& [name, value] : json.items()) {
    if (!name.starts_with("pooling_mode_") || !value.is_boolean() || !value.template get<bool>())
      continue;
    const auto* known =
        std::ranges::find(kModes, name, [](const auto& mode) { return mode.first; });
    if (known == std::end(kModes) || !type.empty())
      return fail_field("model", "{}: \"{}\" is on; one of last token, mean and CLS is needed",
                        file.string(), name.substr(0, 80));
    type = known->second;
  }
  if (type.empty()) return fail_field("model", "{}: no pooling mode is on", file.string());
  return type;
}

// Nothing where the folder has no modules.json, or one without pooling.
Result<std::optional<Pooler>> read_modules(const fs::path& directory) {
  std::error_code error;
  const fs::path file = directory / "modules.json";
  if (!fs::exists(file, error)) return std::optional<Pooler>();
  REFRAIN_ASSIGN_OR_RETURN(const std::string text, read_small_file(file));
  const auto modules = nlohmann::json::parse(text, nullptr, false);
  if (!modules.is_array()) return fail_field("model", "{}: a list is needed", file.string());
  Pooler pooler;
  for (const auto& module : modules) {
    const std::string type = module.is_object() ? module.value("type", "") : std::string();
    const std::string kind = type.substr(type.rfind('.') + 1);
    if (kind == "Pooling") {
      const std::string path = module.value("path", "");
      if (path.empty() || path.find("..") != std::string::npos || path.front() == '/')
        return fail_field("model", "{}: the path of Pooling must be a folder beside it",
                          file.string());
      REFRAIN_ASSIGN_OR_RETURN(pooler.type, read_pooling_mode(directory / path / "config.json"));
    } else if (kind == "Normalize") {
      pooler.normalize = true;
    } else if (kind != "Transformer") {
      return fail_field("model",
                        "{}: the module \"{}\" is not supported; there are Transformer, Pooling "
                        "and Normalize",
                        file.string(), type.substr(0, 80));
    }
  }
  if (!pooler.type) return std::optional<Pooler>();
  if (!pooler.normalize) pooler.normalize = false;
  return std::optional<Pooler>(pooler);
}

Result<Pooler> read_pooler_config(const std::string& text, int64_t hidden_size) {
  const std::string option = "--pooler-config";
  Pooler pooler;
  if (text.empty()) return pooler;
  REFRAIN_ASSIGN_OR_RETURN(const auto json, parse_json_object(text, option));
  ModelConfigFields fields(json, option);
  for (const auto& [name, value] : json.items()) {
    if (name == "pooling_type" || name == "seq_pooling_type") {
      pooler.type = fields.text(name.c_str());
    } else if (name == "normalize" || name == "use_activation") {
      pooler.normalize = fields.boolean(name.c_str(), true);
    } else if (name == "dimensions") {
      pooler.dimensions = fields.integer("dimensions", 1, hidden_size);
    } else if (!value.is_null()) {
      return fail_field(option,
                        "{}: \"{}\" is not supported; there are pooling_type, normalize "
                        "(use_activation) and dimensions",
                        option, name.substr(0, 80));
    }
  }
  REFRAIN_RETURN_IF_ERROR(fields.status());
  if (pooler.type && *pooler.type != "LAST" && *pooler.type != "MEAN" && *pooler.type != "CLS")
    return fail_field(option, "{}: pooling_type \"{}\" is not there; it is LAST, MEAN or CLS",
                      option, pooler.type->substr(0, 80));
  return pooler;
}

// Whether it pools; vLLM's rules and sentences.
Result<bool> resolve_runner(const EngineConfig& config, const ModelConfig& model, bool modules) {
  if (config.convert == "embed" && config.runner == "generate")
    return fail_field("--convert", "--convert embed: `--runner generate` does not pool");
  const bool asks = config.runner == "pooling" || config.convert == "embed";
  const bool pools = asks || (config.runner == "auto" && (modules || !model.has_head));
  if (!pools && !model.has_head)
    return fail_field("--runner", "--runner: this model does not support `--runner generate`");
  if (pools && model.has_head && config.convert == "none")
    return fail_field("--convert",
                      "--convert none: this model does not support `--runner pooling`. You can "
                      "pass `--convert embed` to adapt it into a pooling model");
  return pools;
}

Status check_with_pooling(const EngineConfig& config, const ModelConfig& model) {
  const auto refused = [](const char* option) {
    return fail_field(option, "{} and a model that pools do not go together", option);
  };
  if (config.enable_lora) return refused("--enable-lora");
  if (config.worker.num_speculative_tokens > 0) return refused("--speculative-config");
  if (config.audit_rate > 0) return refused("--audit-rate");
  if (const int64_t most = ipc::kMaxPooled / model.hidden_size; config.worker.max_num_seqs > most)
    return fail_field("--max-num-seqs",
                      "--max-num-seqs {} is too much for a model that pools: its vectors have {} "
                      "numbers, and {} of them fit into a step's answer",
                      config.worker.max_num_seqs, model.hidden_size, most);
  return {};
}

}  // namespace

void add_pooling_options(CLI::App& app, EngineConfig& config) {
  const char* group = "Models that pool";
  app.add_option("--runner", config.runner,
                 "What the model is for: auto (what its folder says), generate or pooling")
      ->check(CLI::IsMember({"auto", "generate", "pooling"}))
      ->group(group);
  app.add_option("--convert", config.convert,
                 "Make a model pool that was made to generate: auto (with --runner pooling), none "
                 "or embed")
      ->check(CLI::IsMember({"auto", "none", "embed"}))
      ->group(group);
  app.add_option_function<std::string>(
         "--task",
         [&config](const std::string& task) {
           if (task == "generate") config.runner = "generate";
           if (task == "embed" || task == "embedding") config.convert = "embed";
         },
         "vLLM's older name: auto, generate (--runner generate), embed (--convert embed)")
      ->check(CLI::IsMember({"auto", "generate", "embed", "embedding"}))
      ->group(group);
  app.add_option("--pooler-config,--override-pooler-config", config.pooler_config,
                 "JSON: pooling_type (LAST, MEAN or CLS), normalize, dimensions; without it what "
                 "the model's modules.json says, else LAST, normalized")
      ->group(group);
}

Status finish_pooling(EngineConfig& config, const ModelConfig& model) {
  std::optional<Pooler> modules;
  REFRAIN_ASSIGN_OR_RETURN(modules, read_modules(config.model));
  REFRAIN_ASSIGN_OR_RETURN(const bool pools, resolve_runner(config, model, modules.has_value()));
  REFRAIN_ASSIGN_OR_RETURN(const Pooler given,
                           read_pooler_config(config.pooler_config, model.hidden_size));
  if (!pools) {
    if (config.pooler_config.empty()) return {};
    return fail_field("--pooler-config", "--pooler-config needs a model that pools (--runner)");
  }
  const Pooler own = modules.value_or(Pooler{});
  config.worker.pooling = given.type.value_or(own.type.value_or("LAST"));
  config.pooling_normalize = given.normalize.value_or(own.normalize.value_or(true));
  config.pooling_dimensions = static_cast<int32_t>(given.dimensions.value_or(0));
  // A prompt's blocks have keys and values, and not the hidden states that these need.
  if (config.worker.pooling != "LAST" && config.enable_prefix_caching) {
    log::info("pooling {}: prefix caching is off, each prompt is computed whole",
              config.worker.pooling);
    config.enable_prefix_caching = false;
  }
  return check_with_pooling(config, model);
}

}  // namespace refrain
