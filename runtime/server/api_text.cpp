// Prompts of requests to token ids, within limits and in turns.
#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/server/api_server.h"
#include "runtime/server/bad_words.h"
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

}  // namespace

// A prompt that cannot fit is refused before the work, and at the first token too many.
text::TextLimits ApiServer::text_limits() const {
  const auto tokens = static_cast<size_t>(engine_.config().worker.max_model_len);
  return {tokens * text_.tokenizer->longest_token_bytes(), tokens, &stop_text_};
}

text::TextLimits ApiServer::text_limits(const ApiRequest& request) const {
  text::TextLimits limits = text_limits();
  if (request.truncate_prompt_tokens) limits.max_tokens = text::TextLimits().max_tokens;
  return limits;
}

// The last tokens stay, as in vLLM; -1: as many as leave room for the answer.
Status ApiServer::truncate(const ApiRequest& request, std::vector<TokenId>& ids) const {
  if (!request.truncate_prompt_tokens) return {};
  const int64_t length = engine_.config().worker.max_model_len;
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

Result<bool> ApiServer::tokenize_some(ApiRequest& request,
                                      std::vector<std::vector<TokenId>>& ids) const {
  if (request.chat) {
    REFRAIN_ASSIGN_OR_RETURN(auto chat,
                             tokenize_chat(text_, request.chat_input, text_limits(request)));
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
        auto one, text_.tokenizer->encode(text, request.add_special_tokens, text_limits(request)));
    REFRAIN_RETURN_IF_ERROR(truncate(request, one));
    ids.push_back(std::move(one));
  }
  return ids.size() == request.prompts.size();
}

void ApiServer::post_turn(const std::string& owner, const Exchange& exchange,
                          std::function<void()> work) {
  ++text_tasks_;
  pool_.post(owner, [this, exchange, work = std::move(work)] {
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

void ApiServer::check_grammar(std::shared_ptr<Reading> reading) {
  const std::string& grammar = reading->request.sampling.grammar;
  if (grammar.empty()) return read_prompts(std::move(reading));
  if (text_.grammars == nullptr) {
    return reply_error(reading->exchange,
                       {ErrorCode::kInvalidArgument,
                        "structured output needs the model's own tokenizer; this server has "
                        "another one (--tokenizer)",
                        {}});
  }
  if (text_.grammars->knows(grammar)) return read_prompts(std::move(reading));
  ++text_tasks_;
  const std::string owner = reading->lease.key().name();
  grammar_pool_.post(owner, [this, owner, reading = std::move(reading)] {
    const Status status = text_.grammars->check(reading->request.sampling.grammar);
    --text_tasks_;
    if (!status) {
      Error error = status.error();
      if (error.code == ErrorCode::kInvalidArgument)
        error.message = "the answer's schema or grammar is refused: " + error.message;
      return reply_error(reading->exchange, error);
    }
    post_turn(owner, reading->exchange, [this, reading] { read_prompts(reading); });
  });
}

void ApiServer::read_prompts(std::shared_ptr<Reading> reading) {
  ApiRequest& request = reading->request;
  if (!request.bad_words.empty()) {
    auto words = encode_bad_words(*text_.tokenizer, std::exchange(request.bad_words, {}));
    if (!words) return reply_error(reading->exchange, words.error());
    request.sampling.bad_words = std::move(*words);
  }
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
