#pragma once
// What a server needs of a model's text side, and a chat's way to token ids. Shared with `refrain
// generate`. Immutable, so any thread.

#include <memory>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/grammar/grammar_helper.h"
#include "runtime/server/chat_input.h"
#include "runtime/text/answer/reasoning.h"
#include "runtime/text/text_limits.h"

namespace refrain {
namespace text {
class Tokenizer;
class ChatTemplate;
}  // namespace text

// The template may be null: no chat.
struct TextSide {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
  std::shared_ptr<GrammarHelper> grammars;  // null: no structured output
};

struct ChatPrompt {
  std::vector<TokenId> ids;
  text::ThinkingStart thinking = text::ThinkingStart::kUnsaid;
};
// Template, then tokenizer.
Result<ChatPrompt> tokenize_chat(const TextSide& text, const ChatInput& chat,
                                 const text::TextLimits& limits = {});

}  // namespace refrain
