#include "runtime/config/generation_config.h"

#include <filesystem>
#include <limits>

#include "runtime/config/model/model_config.h"
#include "runtime/config/model/model_config_fields.h"

namespace refrain {
namespace {

// The ranges of the request's fields; others would fail every request.
Status read_defaults(const nlohmann::json& json, const std::string& where,
                     GenerationDefaults& defaults) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  ModelConfigFields fields(json, where);
  const auto number = [&](const char* name, double least, double most,
                          std::optional<double>& target) {
    if (fields.has(name)) target = fields.number(name, least, most);
  };
  number("temperature", 0.0, 2.0, defaults.temperature);
  number("top_p", std::numeric_limits<double>::min(), 1.0, defaults.top_p);
  number("min_p", 0.0, 1.0, defaults.min_p);
  number("repetition_penalty", 0.01, 10.0, defaults.repetition_penalty);
  if (fields.has("top_k")) defaults.top_k = fields.integer("top_k", -1, kMost);
  if (fields.has("max_new_tokens"))
    defaults.max_new_tokens = fields.integer("max_new_tokens", 1, kMost);
  return fields.status();
}

}  // namespace

std::string GenerationDefaults::describe() const {
  std::string text;
  const auto add = [&text](const char* name, const auto& value) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *value);
  };
  add("temperature", temperature);
  add("top_p", top_p);
  add("top_k", top_k);
  add("min_p", min_p);
  add("repetition_penalty", repetition_penalty);
  add("max_new_tokens", max_new_tokens);
  return text;
}

Result<GenerationDefaults> load_generation_defaults(const std::string& model,
                                                    const std::string& source,
                                                    const std::string& overrides) {
  GenerationDefaults defaults;
  if (source != "vllm") {
    const bool own = source == "auto";
    const auto file = std::filesystem::path(own ? model : source) / "generation_config.json";
    std::error_code error;
    if (!own && !std::filesystem::exists(file, error)) {
      return fail_field("--generation-config",
                        "--generation-config {}: there is no {}; it takes auto, vllm or a "
                        "directory with that file",
                        source, file.string());
    }
    if (std::filesystem::exists(file, error)) {
      REFRAIN_ASSIGN_OR_RETURN(const std::string text, read_small_file(file));
      REFRAIN_ASSIGN_OR_RETURN(const auto json, parse_json_object(text, file.string()));
      REFRAIN_RETURN_IF_ERROR(read_defaults(json, file.string(), defaults));
    }
  }
  if (!overrides.empty()) {
    const std::string option = "--override-generation-config";
    REFRAIN_ASSIGN_OR_RETURN(const auto json, parse_json_object(overrides, option));
    REFRAIN_RETURN_IF_ERROR(read_defaults(json, option, defaults));
  }
  return defaults;
}

}  // namespace refrain
