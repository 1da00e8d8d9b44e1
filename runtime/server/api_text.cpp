// Prompts of requests to token ids, within limits and in turns.
#include "runtime/base/log.h"
#include "runtime/server/api_server.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

// Of text that a request has tokenized before others have their turn: some ten milliseconds.
constexpr size_t kTurnBytes = size_t{1} << 20;

// Nothing that a client sends ends the process.
Error error_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ErrorCode::kUnavailable, "the server has no memory for this request now", {}};
  }
  return {ErrorCode::kInternal, "internal error", {}};
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// The prompt up to the end of its last message's text, which the answer goes on with. White space
// at that end stays where the template keeps it.
Result<std::string> cut_behind(std::string prompt, const std::string& last) {
  const std::string_view text = trimmed(last);
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
  REFRAIN_ASSIGN_OR_RETURN(prompt.ids,
                           text.tokenizer->encode(rendered, /*add_special_tokens=*/false, limits));
  return prompt;
}

// A prompt that cannot fit is refused before the work, and at the first token too many.
text::TextLimits ApiServer::text_limits() const {
  const auto tokens = static_cast<size_t>(engine_.config().worker.max_model_len);
  return {tokens * text_.tokenizer->longest_token_bytes(), tokens, &stop_text_};
}

Result<bool> ApiServer::tokenize_some(ApiRequest& request,
                                      std::vector<std::vector<TokenId>>& ids) const {
  if (request.chat) {
    REFRAIN_ASSIGN_OR_RETURN(auto chat, tokenize_chat(text_, request.chat_input, text_limits()));
    ids.push_back(std::move(chat.ids));
    request.thinking = chat.thinking;
    return true;
  }
  for (size_t bytes = 0; ids.size() < request.prompts.size() && bytes < kTurnBytes;) {
    Prompt& prompt = request.prompts[ids.size()];
    if (auto* given = std::get_if<std::vector<TokenId>>(&prompt)) {
      ids.push_back(std::move(*given));
      continue;
    }
    const auto& text = std::get<std::string>(prompt);
    bytes += text.size();
    REFRAIN_ASSIGN_OR_RETURN(
        auto one, text_.tokenizer->encode(text, request.add_special_tokens, text_limits()));
    ids.push_back(std::move(one));
  }
  return ids.size() == request.prompts.size();
}

void ApiServer::post_turn(const std::string& owner, Exchange exchange, std::function<void()> work) {
  ++text_tasks_;
  pool_.post(owner, [this, exchange = std::move(exchange), work = std::move(work)] {
    try {
      if (stop_text_) {
        reply_error(exchange, {ErrorCode::kUnavailable, "the server is shutting down", {}});
      } else {
        work();
      }
    } catch (const std::exception& error) {
      log::error("reading a request: {}", error.what());
      reply_error(exchange, error_of(error));
    }
    --text_tasks_;
  });
}

void ApiServer::read_prompts(std::shared_ptr<Reading> reading) {
  const auto all = tokenize_some(reading->request, reading->prompts);
  if (!all) return reply_error(reading->exchange, all.error());
  if (!*all) {
    const std::string owner = reading->lease.key().name();
    const Exchange exchange = reading->exchange;
    return post_turn(owner, exchange,
                     [this, reading = std::move(reading)] { read_prompts(reading); });
  }
  start_session(*reading);
}

}  // namespace refrain
