// A chat's input to its prompt: template, tokenizer.
#include "runtime/server/text_side.h"
#include "runtime/text/answer/marker_search.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

// The prompt up to the end of its last message's text, which the answer goes on with. White space
// at that end stays where the template keeps it.
Result<std::string> cut_behind(std::string prompt, const std::string& last) {
  const std::string_view text = text::trimmed(last);
  const size_t at = text.empty() ? std::string::npos : prompt.rfind(text);
  if (at == std::string::npos) {
    return fail_field("continue_final_message", "continue_final_message: {}",
                      text.empty()
                          ? "the last message has no text"
                          : "the template does not print the last message's text as it is");
  }
  const size_t spaces = last.size() - (last.find(text) + text.size());
  const std::string_view behind = std::string_view(last).substr(last.size() - spaces);
  const size_t end = at + text.size();
  const bool kept = prompt.compare(end, spaces, behind) == 0;
  prompt.resize(end + (kept ? spaces : 0));
  return prompt;
}

Result<std::string> render(const TextSide& text, const ChatInput& chat) {
  OrderedJson input = chat.variables;
  const text::SpecialTokens& special = text.tokenizer->special_tokens();
  if (special.bos) input["bos_token"] = *special.bos;
  if (special.eos) input["eos_token"] = *special.eos;
  if (chat.chat_template.empty()) {
    if (text.chat_template) return text.chat_template->render(input);
    return fail_field("messages",
                      "the model has no chat template; use /v1/completions or --chat-template");
  }
  auto own = text::ChatTemplate::from_source(chat.chat_template);
  if (own) return own->render(input);
  Error error = own.error();
  error.code = ErrorCode::kInvalidArgument;
  error.field = "chat_template";
  return forward_error(std::move(error));
}

}  // namespace

Result<ChatPrompt> tokenize_chat(const TextSide& text, const ChatInput& chat,
                                 const text::TextLimits& limits) {
  ChatPrompt prompt;
  REFRAIN_ASSIGN_OR_RETURN(std::string rendered, render(text, chat));
  if (chat.continue_final_message) {
    const auto last = chat.variables.at("messages").back().at("content").get<std::string>();
    REFRAIN_ASSIGN_OR_RETURN(rendered, cut_behind(std::move(rendered), last));
    prompt.thinking = text::thinking_start_after(last);
  } else {
    prompt.thinking = text::thinking_start(rendered);
  }
  // A template that does not know the switch leaves it to the model, which then answers at once.
  const auto off = [&chat](const char* name) {
    const auto at = chat.variables.find(name);
    return at != chat.variables.end() && *at == false;
  };
  if (prompt.thinking == text::ThinkingStart::kUnsaid &&
      (off("enable_thinking") || off("thinking")))
    prompt.thinking = text::ThinkingStart::kClosed;
  REFRAIN_ASSIGN_OR_RETURN(prompt.ids,
                           text.tokenizer->encode(rendered, /*add_special_tokens=*/false, limits));
  return prompt;
}

}  // namespace refrain
