// Prompts of requests to token ids, within limits.
#include "runtime/server/api_server.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {

Result<std::vector<TokenId>> tokenize_chat(const TextSide& text, const OrderedJson& template_input,
                                           const text::TextLimits& limits) {
  if (!text.chat_template) {
    return fail_field("messages",
                      "the model has no chat template; use /v1/completions or --chat-template");
  }
  OrderedJson input = template_input;
  const text::SpecialTokens& special = text.tokenizer->special_tokens();
  if (special.bos) input["bos_token"] = *special.bos;
  if (special.eos) input["eos_token"] = *special.eos;
  REFRAIN_ASSIGN_OR_RETURN(const std::string rendered, text.chat_template->render(input));
  return text.tokenizer->encode(rendered, /*add_special_tokens=*/false, limits);
}

// A prompt that cannot fit is refused before the work, and at the first token too many.
text::TextLimits ApiServer::text_limits() const {
  const auto tokens = static_cast<size_t>(engine_.config().worker.max_model_len);
  return {tokens * text_.tokenizer->longest_token_bytes(), tokens, &stop_text_};
}

Result<std::vector<std::vector<TokenId>>> ApiServer::tokenize(ApiRequest& request) const {
  std::vector<std::vector<TokenId>> prompts;
  if (request.chat) {
    REFRAIN_ASSIGN_OR_RETURN(auto ids, tokenize_chat(text_, request.template_input, text_limits()));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  for (Prompt& prompt : request.prompts) {
    if (auto* given = std::get_if<std::vector<TokenId>>(&prompt)) {
      prompts.push_back(std::move(*given));
      continue;
    }
    REFRAIN_ASSIGN_OR_RETURN(
        auto ids, text_.tokenizer->encode(std::get<std::string>(prompt), request.add_special_tokens,
                                          text_limits()));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace refrain
