#include "runtime/server/prompt_tokens.h"

#include <algorithm>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

// Of text that a request has tokenized before others have their turn: some ten milliseconds.
constexpr size_t kTurnBytes = size_t{1} << 20;

}  // namespace

PromptTokens::PromptTokens(TextSide text, int64_t max_model_len, const std::atomic<bool>& stop)
    : text_(std::move(text)), max_model_len_(max_model_len), stop_(stop) {}

// A prompt that cannot fit is refused before the work, and at the first token too many.
text::TextLimits PromptTokens::limits() const {
  const auto tokens = static_cast<size_t>(max_model_len_);
  return {tokens * text_.tokenizer->longest_token_bytes(), tokens, &stop_};
}

text::TextLimits PromptTokens::limits(const ApiRequest& request) const {
  text::TextLimits given = limits();
  // Where a prompt that is too long may be cut, only its bytes are limited.
  if (request.truncate_prompt_tokens) given.max_tokens = text::TextLimits().max_tokens;
  return given;
}

// The last tokens stay, as in vLLM; -1: as many as leave room for the answer.
Status PromptTokens::truncate(const ApiRequest& request, std::vector<TokenId>& ids) const {
  if (!request.truncate_prompt_tokens) return {};
  const int64_t length = max_model_len_;
  const int64_t answer =
      request.pooling ? 0 : std::clamp<int64_t>(request.max_tokens.value_or(1), 1, length - 1);
  int64_t kept = *request.truncate_prompt_tokens;
  if (kept == -1) kept = length - answer;
  if (kept > length) {
    return fail_field("truncate_prompt_tokens",
                      "truncate_prompt_tokens is {}, more than max_model_len ({})", kept, length);
  }
  const auto size = static_cast<int64_t>(ids.size());
  if (size > kept) ids.erase(ids.begin(), ids.begin() + (size - kept));
  return {};
}

Result<std::vector<TokenId>> PromptTokens::encode(const std::string& text,
                                                  bool add_special_tokens) const {
  return text_.tokenizer->encode(text, add_special_tokens, limits());
}

Result<ChatPrompt> PromptTokens::encode(const ChatInput& chat) const {
  return tokenize_chat(text_, chat, limits());
}

Result<bool> PromptTokens::take_some(ApiRequest& request,
                                     std::vector<std::vector<TokenId>>& ids) const {
  if (request.chat) {
    REFRAIN_ASSIGN_OR_RETURN(auto chat, tokenize_chat(text_, request.chat_input, limits(request)));
    REFRAIN_RETURN_IF_ERROR(truncate(request, chat.ids));
    request.thinking = chat.thinking;
    ids.push_back(std::move(chat.ids));
    return true;
  }
  for (size_t bytes = 0; ids.size() < request.prompts.size() && bytes < kTurnBytes;) {
    Prompt& prompt = request.prompts[ids.size()];
    if (auto* given = std::get_if<std::vector<TokenId>>(&prompt)) {
      REFRAIN_RETURN_IF_ERROR(truncate(request, *given));
      ids.push_back(std::move(*given));
      continue;
    }
    const auto& text = std::get<std::string>(prompt);
    bytes += text.size();
    REFRAIN_ASSIGN_OR_RETURN(
        auto one, text_.tokenizer->encode(text, request.add_special_tokens, limits(request)));
    REFRAIN_RETURN_IF_ERROR(truncate(request, one));
    ids.push_back(std::move(one));
  }
  return ids.size() == request.prompts.size();
}

}  // namespace refrain
