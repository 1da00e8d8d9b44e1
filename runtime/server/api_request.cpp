#include "runtime/server/api_request.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "runtime/server/ignored_fields.h"
#include "runtime/server/structured_output.h"

namespace refrain {
namespace {

constexpr double kAnyNumber = 1e30;
constexpr double kLongestWait = 86400;  // seconds
// How many may be asked for is the engine's to say (--max-logprobs).
constexpr int64_t kMostLogprobs = std::numeric_limits<int32_t>::max();

void read_stop(JsonFields& fields, SamplingParams& params) {
  const Json* stop = fields.get("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    params.stop.push_back(stop->get<std::string>());
    return;
  }
  if (!stop->is_array()) return fields.fail_on("stop", "must be a string or a list of strings");
  for (const Json& item : *stop) {
    if (!item.is_string()) return fields.fail_on("stop", "must be a string or a list of strings");
    params.stop.push_back(item.get<std::string>());
  }
}

void read_logit_bias(JsonFields& fields, SamplingParams& params) {
  const Json* bias = fields.get("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    return fields.fail_on("logit_bias", "must be an object from token id to a number");
  }
  for (const auto& [key, value] : bias->items()) {
    TokenId token = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size() || token < 0) {
      return fields.fail_on("logit_bias",
                            fmt::format("has the key '{}', which is no token id", key));
    }
    if (!value.is_number() || value.get<double>() < -100 || value.get<double>() > 100) {
      return fields.fail_on("logit_bias", fmt::format("of token {} must be from -100 to 100", key));
    }
    params.logit_bias.emplace_back(token, value.get<float>());
  }
}

void read_token_list(JsonFields& fields, const char* name, std::vector<TokenId>& out) {
  const Json* value = fields.get(name);
  if (value == nullptr) return;
  auto ids = read_token_ids(*value, name);
  if (!ids) return fields.fail_on(name, "must be a list of token ids");
  out = std::move(*ids);
}

// Fields that OpenAI or vLLM know and this server does not serve: a clear refusal, not silence.
void refuse_unsupported(JsonFields& fields) {
  for (const char* name : {"suffix", "functions", "audio", "modalities"}) {
    if (const Json* value = fields.get(name);
        value != nullptr && *value != "" && *value != Json::array()) {
      fields.fail_on(name, "is not supported");
    }
  }
  if (const auto beams = fields.boolean("use_beam_search"); beams && *beams) {
    fields.fail_on("use_beam_search", "is not supported");
  }
}

void read_bad_words(JsonFields& fields, std::vector<std::string>& words) {
  const Json* list = fields.get("bad_words");
  if (list == nullptr) return;
  const auto is_string = [](const Json& item) { return item.is_string(); };
  if (!list->is_array() || !std::ranges::all_of(*list, is_string))
    return fields.fail_on("bad_words", "must be a list of strings");
  words = list->get<std::vector<std::string>>();
}

}  // namespace

std::optional<Duration> read_duration(JsonFields& fields, const char* name) {
  const auto seconds = fields.number(name, 0.001, kLongestWait);
  if (!seconds) return std::nullopt;
  return to_duration(*seconds);
}

// What the server's sampling defaults say, until the request says otherwise.
void apply_defaults(const GenerationDefaults& defaults, SamplingParams& params) {
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  params.top_k = defaults.top_k.value_or(params.top_k);
}

RequestRules request_rules(const EngineConfig& config) {
  return {config.generation_defaults, config.enable_auto_tool_choice,
          config.trust_request_chat_template};
}

Status read_common(const Json& body, const RequestRules& rules, ApiRequest& request) {
  JsonFields fields(body);
  apply_defaults(rules.defaults, request.sampling);
  refuse_unsupported(fields);
  read_bad_words(fields, request.bad_words);
  request.model = fields.string("model").value_or("");
  request.n = fields.integer("n", 1, kMaxChoices).value_or(1);
  if (const auto best_of = fields.integer("best_of", 1, kMaxChoices);
      best_of && *best_of != request.n) {
    fields.fail_on("best_of", "must equal n");
  }
  constexpr int64_t kMostPriority = std::numeric_limits<int32_t>::max();
  request.priority =
      static_cast<int32_t>(fields.integer("priority", -kMostPriority, kMostPriority).value_or(0));
  request.cache_salt = fields.string("cache_salt").value_or("");
  request.max_queue_wait = read_duration(fields, "max_queue_wait");
  request.timeout = read_duration(fields, "timeout");
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.get("stream_options"); options != nullptr) {
    if (!request.stream) fields.fail_on("stream_options", "needs stream to be true");
    if (!options->is_object()) {
      fields.fail_on("stream_options", "must be an object");
    } else {
      JsonFields given(*options);
      request.include_usage = given.boolean("include_usage").value_or(false);
      request.continuous_usage =
          given.boolean("continuous_usage_stats").value_or(false) && request.include_usage;
      if (!given.ok())
        fields.fail_on("stream_options." + given.status().error().field, "must be true or false");
    }
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (const auto top = fields.integer("prompt_logprobs", 0, kMost)) {
    if (request.stream) fields.fail_on("prompt_logprobs", "is not available when stream is true");
    request.prompt_logprobs = request.sampling.prompt_logprobs = static_cast<int32_t>(*top);
  }
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  request.return_tokens_as_token_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  request.truncate_prompt_tokens = fields.integer("truncate_prompt_tokens", -1, kMost);
  if (request.truncate_prompt_tokens == 0)
    fields.fail_on("truncate_prompt_tokens", "must be -1 or positive");
  request.ignored = ignored_fields(body, request.chat);
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(!request.chat);
  REFRAIN_RETURN_IF_ERROR(fields.status());
  REFRAIN_RETURN_IF_ERROR(read_sampling_params(body, request.sampling));
  // vLLM's -1: none. Not in read_sampling_params, which is given seeds of single choices too.
  if (request.sampling.seed == static_cast<uint64_t>(-1)) request.sampling.seed.reset();
  return {};
}

Status read_max_tokens(const Json& body, std::initializer_list<const char*> names,
                       const RequestRules& rules, ApiRequest& request) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  JsonFields fields(body);
  const int64_t least = request.echo ? 0 : 1;  // an echo may be all that is wanted
  for (const char* name : names)
    if (const auto given = fields.integer(name, least, kMost)) request.max_tokens = given;
  if (const auto most = rules.defaults.max_new_tokens)
    request.max_tokens = std::min(request.max_tokens.value_or(*most), *most);
  return fields.status();
}

Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& field) {
  if (!value.is_array()) return fail_field(field, "{} must be a list of token ids", field);
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    if (!item.is_number_integer() || item.get<int64_t>() < 0 ||
        item.get<int64_t>() > std::numeric_limits<TokenId>::max()) {
      return fail_field(field, "{} must hold whole numbers >= 0, got {}", field,
                        item.dump().substr(0, 40));
    }
    ids.push_back(item.get<TokenId>());
  }
  return ids;
}

Status read_sampling_params(const Json& body, SamplingParams& params) {
  JsonFields fields(body);
  // Ranges that depend on the engine are checked again, by name, in check_sampling_params.
  auto number = [&fields](const char* name, double& target) {
    if (const auto given = fields.number(name, -kAnyNumber, kAnyNumber)) target = *given;
  };
  number("temperature", params.temperature);
  number("top_p", params.top_p);
  number("min_p", params.min_p);
  number("repetition_penalty", params.repetition_penalty);
  number("presence_penalty", params.presence_penalty);
  number("frequency_penalty", params.frequency_penalty);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (const auto k = fields.integer("top_k", -1, kMost)) params.top_k = *k;
  if (const auto least = fields.integer("min_tokens", 0, kMost)) params.min_tokens = *least;
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max())) {
    params.seed = static_cast<uint64_t>(*seed);
  }
  if (const auto given = fields.boolean("ignore_eos")) params.ignore_eos = *given;
  if (const auto given = fields.boolean("skip_special_tokens")) params.skip_special_tokens = *given;
  if (const auto given = fields.boolean("include_stop_str_in_output")) {
    params.include_stop_str_in_output = *given;
  }
  read_stop(fields, params);
  read_logit_bias(fields, params);
  read_token_list(fields, "stop_token_ids", params.stop_token_ids);
  if (fields.has("allowed_token_ids")) {
    params.allowed_token_ids.emplace();
    std::vector<TokenId>& allowed = *params.allowed_token_ids;
    read_token_list(fields, "allowed_token_ids", allowed);
    std::ranges::sort(allowed);
    allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  }
  return fields.status();
}

Result<std::vector<TokenId>> rest_of_ids(const Json& rest, const std::string& field,
                                         std::vector<TokenId> taken) {
  if (rest.is_array() && rest.empty()) return taken;
  return read_token_ids(rest, field);
}

Status read_prompts(const Json& value, const std::string& field, TokenLists ids,
                    std::vector<Prompt>& prompts) {
  const auto wrong = [&] {
    return fail_field(field, "{} must be a string, a list of strings, or lists of token ids",
                      field);
  };
  if (value.is_string()) {
    prompts.emplace_back(value.get<std::string>());
    return {};
  }
  if (!value.is_array() || (value.empty() && ids.flat.empty())) return wrong();
  if (!ids.flat.empty() || value.front().is_number()) {
    REFRAIN_ASSIGN_OR_RETURN(auto flat, rest_of_ids(value, field, std::move(ids.flat)));
    prompts.emplace_back(std::move(flat));
    return {};
  }
  auto taken = ids.nested.begin();
  for (const Json& item : value) {
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      const bool none = taken == ids.nested.end();
      REFRAIN_ASSIGN_OR_RETURN(
          auto list, rest_of_ids(item, field, none ? std::vector<TokenId>() : std::move(*taken++)));
      prompts.emplace_back(std::move(list));
    } else {
      return wrong();
    }
  }
  return {};
}

Result<ApiRequest> parse_completion_request(const Json& body, TokenLists ids,
                                            const RequestRules& rules) {
  if (!body.is_object()) return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  ApiRequest request;
  REFRAIN_RETURN_IF_ERROR(read_common(body, rules, request));
  REFRAIN_ASSIGN_OR_RETURN(request.sampling.grammar, structured_output_of(OrderedJson(body)));
  JsonFields fields(body);
  const Json* prompt = fields.get("prompt");
  if (prompt == nullptr) return fail_field("prompt", "prompt is missing");
  REFRAIN_RETURN_IF_ERROR(read_prompts(*prompt, "prompt", std::move(ids), request.prompts));
  if (request.prompts.size() > 256)
    return fail_field("prompt", "prompt holds more than 256 prompts");
  request.echo = fields.boolean("echo").value_or(false);
  if (const auto top = fields.integer("logprobs", 0, kMostLogprobs)) {
    request.logprobs = true;
    request.sampling.logprobs = static_cast<int32_t>(*top);
    if (request.echo)
      request.sampling.prompt_logprobs =
          std::max(request.sampling.prompt_logprobs, request.sampling.logprobs);
  }
  REFRAIN_RETURN_IF_ERROR(fields.status());
  request.max_tokens = 16;
  REFRAIN_RETURN_IF_ERROR(read_max_tokens(body, {"max_tokens"}, rules, request));
  return request;
}

GenerateRequest begin_request(const ApiRequest& request, std::vector<TokenId> prompt,
                              std::string salt_of_key, size_t output_thread) {
  GenerateRequest generate;
  generate.prompt = std::move(prompt);
  generate.cache_salt = std::move(salt_of_key);
  if (!request.cache_salt.empty()) generate.cache_salt += '\n' + request.cache_salt;
  generate.priority = request.priority;
  generate.max_queue_wait = request.max_queue_wait;
  generate.timeout = request.timeout;
  generate.output_thread = output_thread;
  return generate;
}

}  // namespace refrain
