#include "runtime/config/speculative_config.h"

#include <cmath>
#include <optional>
#include <string>

#include "ipc/protocol/limits.h"
#include "runtime/base/json.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

constexpr int32_t kLookup = 5;       // both ends, where neither is given
constexpr int32_t kMostLookup = 64;  // tokens
constexpr int32_t kMostRanks = 1024;

Result<int32_t> whole_number(const Json& value, const std::string& key, int32_t most) {
  if (value.is_number_integer() && value.get<int64_t>() >= 1 && value.get<int64_t>() <= most)
    return static_cast<int32_t>(value.get<int64_t>());
  return fail_field(key, "speculative config: {} must be a whole number from 1 to {}", key, most);
}

constexpr const char* kMethods =
    "there are \"ngram\", which takes drafts from the prompt and the answer so far, "
    "\"draft_model\", which takes them from a smaller model, and \"eagle\" and \"eagle3\", which "
    "take them from a head that reads the model's hidden states";

// As given, before it is known whether the keys go together.
struct Given {
  std::string method, model, rejection = "standard";
  std::optional<int32_t> drafts, least, most, draft_ranks;
  std::optional<double> acceptance;
};

Status read_key(const std::string& key, const Json& value, Given& given) {
  if (key == "method" || key == "model" || key == "rejection_sample_method") {
    if (!value.is_string())
      return fail_field(key, "speculative config: {} must be a string, got: {}", key, value.dump());
    (key == "method"  ? given.method
     : key == "model" ? given.model
                      : given.rejection) = value.get<std::string>();
  } else if (key == "synthetic_acceptance_rate") {
    given.acceptance = value.is_number() ? value.get<double>() : -1;
    if (!(*given.acceptance >= 0 && *given.acceptance <= 1))
      return fail_field(key, "speculative config: {} must be a number from 0 to 1, got: {}", key,
                        value.dump());
  } else if (key == "num_speculative_tokens") {
    REFRAIN_ASSIGN_OR_RETURN(given.drafts, whole_number(value, key, ipc::kMaxDrafts));
  } else if (key == "prompt_lookup_min") {
    REFRAIN_ASSIGN_OR_RETURN(given.least, whole_number(value, key, kMostLookup));
  } else if (key == "prompt_lookup_max") {
    REFRAIN_ASSIGN_OR_RETURN(given.most, whole_number(value, key, kMostLookup));
  } else if (key == "draft_tensor_parallel_size") {
    REFRAIN_ASSIGN_OR_RETURN(given.draft_ranks, whole_number(value, key, kMostRanks));
  } else {
    return fail_field(key,
                      "speculative config: unknown key '{}'; there are method, model, "
                      "num_speculative_tokens, prompt_lookup_min, prompt_lookup_max, "
                      "draft_tensor_parallel_size, rejection_sample_method and "
                      "synthetic_acceptance_rate",
                      key);
  }
  return {};
}

using ipc::DraftHead;

DraftHead head_of(const std::string& method) {
  if (method == "eagle3") return DraftHead::kEagle3;
  return method == "eagle" ? DraftHead::kEagle : DraftHead::kNone;
}

// vLLM's names. The words for what is always done here: a draft counts where it is what the model
// draws.
Status check_rejection(const Given& given) {
  const bool synthetic = given.rejection == "synthetic";
  if (!synthetic && given.rejection != "standard" && given.rejection != "strict")
    return fail_field("rejection_sample_method",
                      "speculative config: rejection_sample_method \"{}\" is not there; there are "
                      "\"standard\" (\"strict\" is the same) and, to measure, \"synthetic\"",
                      given.rejection);
  if (synthetic != given.acceptance.has_value())
    return fail_field("synthetic_acceptance_rate",
                      "speculative config: synthetic_acceptance_rate and "
                      "\"rejection_sample_method\": \"synthetic\" need each other");
  return {};
}

// Drafts count one after the other up to the first wrong one. The chance of each, of 2^32, with
// which so large a share of `drafts` counts in the mean.
int64_t chance_of(double share, int32_t drafts) {
  const auto counts = [drafts](double chance) {
    double sum = 0, product = 1;
    for (int32_t i = 0; i < drafts; ++i) sum += product *= chance;
    return sum / drafts;
  };
  double low = 0, high = 1;
  for (int i = 0; i < 64; ++i) {
    const double middle = (low + high) / 2;
    (counts(middle) < share ? low : high) = middle;
  }
  return std::llround(std::ldexp(high, 32));
}

Status check_method(const Given& given) {
  if (given.method.empty())
    return fail_field("method", "speculative config: method is missing; {}", kMethods);
  const bool ngram = given.method == "ngram";
  const bool model = given.method == "draft_model" || head_of(given.method) != DraftHead::kNone;
  if (!ngram && !model)
    return fail_field("method", "speculative config: method \"{}\" is not there; {}", given.method,
                      kMethods);
  if (model && given.model.empty())
    return fail_field("model",
                      "speculative config: model is missing; it is the directory of the model or "
                      "head that makes the drafts");
  if (ngram && (!given.model.empty() || given.draft_ranks))
    return fail_field(given.model.empty() ? "draft_tensor_parallel_size" : "model",
                      "speculative config: model and draft_tensor_parallel_size are for methods "
                      "\"draft_model\", \"eagle\" and \"eagle3\"");
  if (model && (given.least || given.most))
    return fail_field(given.least ? "prompt_lookup_min" : "prompt_lookup_max",
                      "speculative config: prompt_lookup_min and prompt_lookup_max are for method "
                      "\"ngram\"");
  if (!given.drafts)
    return fail_field("num_speculative_tokens",
                      "speculative config: num_speculative_tokens is missing; it says how many "
                      "drafts a step verifies");
  return {};
}

}  // namespace

Status apply_speculative_config(const std::string& text, EngineConfig& engine) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object())
    return fail_field("speculative_config", "speculative config must be a JSON object, got: {}",
                      text);
  Given given;
  for (const auto& [key, value] : json.items())
    REFRAIN_RETURN_IF_ERROR(read_key(key, value, given));
  REFRAIN_RETURN_IF_ERROR(check_method(given));
  REFRAIN_RETURN_IF_ERROR(check_rejection(given));
  ipc::WorkerConfig& config = engine.worker;
  config.num_speculative_tokens = *given.drafts;
  config.draft_head = head_of(given.method);
  config.draft_model = given.method == "draft_model" || config.draft_head != DraftHead::kNone;
  engine.draft_model = given.model;
  engine.draft_tensor_parallel_size = given.draft_ranks.value_or(0);
  config.draft_tensor_parallel_size = engine.draft_tensor_parallel_size == 1 ? 1 : 0;
  config.synthetic_acceptance = given.acceptance ? chance_of(*given.acceptance, *given.drafts) : -1;
  config.prompt_lookup_min = given.least ? *given.least : given.most.value_or(kLookup);
  config.prompt_lookup_max = given.most ? *given.most : given.least.value_or(kLookup);
  if (config.prompt_lookup_min > config.prompt_lookup_max)
    return fail_field("prompt_lookup_min",
                      "speculative config: prompt_lookup_min {} is more than prompt_lookup_max {}",
                      config.prompt_lookup_min, config.prompt_lookup_max);
  return {};
}

Status check_draft_model(const EngineConfig& config, const ModelConfig& model) {
  if (config.draft_model.empty()) return {};
  const int32_t ranks = config.worker.tensor_parallel_size;
  if (config.worker.split_prefill > 1)
    return fail_field("--split-prefill",
                      "--split-prefill and a draft model do not go together: the draft model reads "
                      "what the model leaves of a whole run; leave one of them out");
  const int32_t given = config.draft_tensor_parallel_size;
  if (given != 0 && given != 1 && given != ranks)
    return fail_field(
        "draft_tensor_parallel_size",
        "speculative config: draft_tensor_parallel_size is {}; it must be 1 or the {} "
        "ranks of --tensor-parallel-size",
        given, ranks);
  if (given == 1 && ranks > 1 && config.worker.draft_head != ipc::DraftHead::kNone)
    return fail_field("draft_tensor_parallel_size",
                      "speculative config: a draft head shares the model's embeddings, so its "
                      "draft_tensor_parallel_size is the {} ranks of --tensor-parallel-size",
                      ranks);
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig draft, load_model_config(config.draft_model));
  if (draft.vocab_size != model.vocab_size)
    return fail_field("model",
                      "speculative config: the draft model {} has a vocabulary of {} tokens, the "
                      "model one of {}; they must be the same",
                      config.draft_model, draft.vocab_size, model.vocab_size);
  if (config.worker.draft_head != ipc::DraftHead::kNone && draft.hidden_size != model.hidden_size)
    return fail_field(
        "model",
        "speculative config: the draft head {} has a hidden_size of {}, the model one "
        "of {}; they must be the same",
        config.draft_model, draft.hidden_size, model.hidden_size);
  if (draft.num_heads < ranks)
    return fail_field("model",
                      "speculative config: the draft model has {} attention heads "
                      "(num_attention_heads), which cannot be spread over --tensor-parallel-size "
                      "{}",
                      draft.num_heads, ranks);
  return {};
}

}  // namespace refrain
