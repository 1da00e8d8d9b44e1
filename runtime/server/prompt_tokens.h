#pragma once
// Prompts of requests to token ids, within what the model can take. Any thread.

#include <atomic>
#include <string>
#include <vector>

#include "runtime/server/api_request.h"
#include "runtime/server/text_side.h"

namespace refrain {

class PromptTokens {
 public:
  // `stop`: the work ends with errors when it is true; outlives this object.
  PromptTokens(TextSide text, int64_t max_model_len, const std::atomic<bool>& stop);

  const text::Tokenizer& tokenizer() const { return *text_.tokenizer; }
  Result<std::vector<TokenId>> encode(const std::string& text, bool add_special_tokens) const;
  Result<ChatPrompt> encode(const ChatInput& chat) const;
  // Takes the next prompts out of the request, as much text as one turn may take. True: all are
  // out.
  Result<bool> take_some(ApiRequest& request, std::vector<std::vector<TokenId>>& ids) const;

 private:
  text::TextLimits limits() const;
  text::TextLimits limits(const ApiRequest& request) const;
  Status truncate(const ApiRequest& request, std::vector<TokenId>& ids) const;

  const TextSide text_;
  const int64_t max_model_len_;
  const std::atomic<bool>& stop_;
};

}  // namespace refrain
