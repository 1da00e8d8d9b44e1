#include "runtime/offline/request_line.h"

#include <algorithm>

#include "runtime/grammar/grammar_helper.h"
#include "runtime/server/api_request.h"
#include "runtime/server/bad_words.h"
#include "runtime/server/structured_output.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

Result<std::vector<TokenId>> prompt_of(const Json& json, const OrderedJson& ordered,
                                       const TextSide& text) {
  const JsonFields fields(json);
  const int given = fields.has("prompt") + fields.has("messages") + fields.has("prompt_ids");
  if (given != 1) {
    return fail_field("prompt", "needs exactly one of prompt, messages and prompt_ids");
  }
  if (const Json* ids = fields.get("prompt_ids")) return read_token_ids(*ids, "prompt_ids");
  if (fields.has("messages")) {
    REFRAIN_ASSIGN_OR_RETURN(const ChatInput input,
                             read_chat_input(ordered, /*trust_chat_template=*/true));
    REFRAIN_ASSIGN_OR_RETURN(ChatPrompt chat, tokenize_chat(text, input));
    return std::move(chat.ids);
  }
  const Json* prompt = fields.get("prompt");
  if (!prompt->is_string()) return fail_field("prompt", "prompt must be a string");
  return text.tokenizer->encode(prompt->get<std::string>(), /*add_special_tokens=*/true);
}

Status read_logprobs(const Json& json, SamplingParams& params) {
  JsonFields fields(json);
  // How many may be asked for is the engine's to say (--max-logprobs).
  if (const auto top = fields.integer("prompt_logprobs", 0, INT32_MAX))
    params.prompt_logprobs = static_cast<int32_t>(*top);
  const Json* value = fields.get("logprobs");
  if (value != nullptr && value->is_boolean()) {
    const auto top = fields.integer("top_logprobs", 0, INT32_MAX).value_or(0);
    if (value->get<bool>()) params.logprobs = static_cast<int32_t>(top);
  } else if (const auto top = fields.integer("logprobs", 0, INT32_MAX)) {
    params.logprobs = static_cast<int32_t>(*top);
  }
  return fields.status();
}

Status read_bad_words(const Json& json, const TextSide& text, SamplingParams& params) {
  const Json* given = JsonFields(json).get("bad_words");
  if (given == nullptr) return {};
  const auto is_string = [](const Json& item) { return item.is_string(); };
  if (!given->is_array() || !std::ranges::all_of(*given, is_string))
    return fail_field("bad_words", "bad_words must be a list of strings");
  REFRAIN_ASSIGN_OR_RETURN(
      params.bad_words, encode_bad_words(*text.tokenizer, given->get<std::vector<std::string>>()));
  return {};
}

Result<std::string> grammar_of(const OrderedJson& line, const TextSide& text) {
  REFRAIN_ASSIGN_OR_RETURN(std::string grammar, structured_output_of(line));
  if (grammar.empty()) return grammar;
  if (text.grammars == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "structured output needs the model's own tokenizer (--tokenizer)");
  }
  REFRAIN_RETURN_IF_ERROR(text.grammars->check(grammar));
  return grammar;
}

}  // namespace

Result<GenerateRequest> read_request_line(const OrderedJson& line, const TextSide& text,
                                          const GenerationDefaults& model,
                                          const LineDefaults& defaults) {
  const Json json(line);
  GenerateRequest request;
  SamplingParams& params = request.sampling;
  REFRAIN_ASSIGN_OR_RETURN(request.prompt, prompt_of(json, line, text));
  apply_defaults(model, params);
  REFRAIN_RETURN_IF_ERROR(read_sampling_params(json, params));
  REFRAIN_RETURN_IF_ERROR(read_logprobs(json, params));
  REFRAIN_RETURN_IF_ERROR(read_bad_words(json, text, params));
  JsonFields fields(json);
  if (fields.integer("n", 1, INT32_MAX).value_or(1) != 1) {
    fields.fail_on("n", "n must be 1, since a line has one answer; repeat the line instead");
  }
  if (defaults.temperature && !fields.has("temperature")) {
    params.temperature = static_cast<float>(*defaults.temperature);
  }
  params.max_tokens = fields.integer("max_tokens", 1, INT32_MAX).value_or(defaults.max_tokens);
  if (const auto most = fields.integer("max_completion_tokens", 1, INT32_MAX)) {
    params.max_tokens = *most;
  }
  request.priority =
      static_cast<int32_t>(fields.integer("priority", -INT32_MAX, INT32_MAX).value_or(0));
  params.max_tokens = std::min(params.max_tokens, model.max_new_tokens.value_or(params.max_tokens));
  REFRAIN_RETURN_IF_ERROR(fields.status());
  REFRAIN_ASSIGN_OR_RETURN(params.grammar, grammar_of(line, text));
  return request;
}

}  // namespace refrain
