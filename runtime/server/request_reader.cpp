#include "runtime/server/request_reader.h"

#include <random>
#include <utility>

#include "runtime/server/bad_words.h"
#include "runtime/server/completion_session.h"
#include "runtime/server/pooling_session.h"
#include "runtime/server/served_models.h"

namespace refrain {
namespace {

std::string fresh_id(const char* begin) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:016x}", begin, random(), random());
}

AnswerHead head_of(const ParsedRequest& parsed, const EngineConfig& config) {
  const ApiRequest& request = parsed.request;
  AnswerHead head;
  head.id = parsed.own_id.empty() ? fresh_id(parsed.id_begin) : parsed.id_begin + parsed.own_id;
  head.model = request.model.empty() ? config.served_model_names.front() : request.model;
  head.created = now_seconds();
  if (request.pooling) return head;
  head.chat = request.chat;
  head.logprobs = request.logprobs;
  head.num_logprobs = request.sampling.logprobs;
  head.num_prompt_logprobs = request.prompt_logprobs.value_or(-1);
  head.echo = request.echo;
  head.token_ids = request.return_token_ids;
  head.tokens_as_ids = request.return_tokens_as_token_ids;
  return head;
}

}  // namespace

RequestReader::RequestReader(Engine& engine, const TextSide& text, const PromptTokens& tokens,
                             TextWork& work, IgnoredFields& ignored, Replies replies)
    : engine_(engine),
      text_(text),
      tokens_(tokens),
      work_(work),
      ignored_(ignored),
      replies_(std::move(replies)) {}

void RequestReader::start(ParsedRequest parsed) {
  ignored_.say(parsed.request.ignored);
  if (auto known = check_model(engine_, parsed.request.model); !known)
    return replies_.error(parsed.exchange, known.error());
  check_grammar(std::make_shared<ParsedRequest>(std::move(parsed)));
}

void RequestReader::check_grammar(Parsed parsed) {
  const std::string& grammar = parsed->request.sampling.grammar;
  if (grammar.empty()) return read_prompts(std::move(parsed));
  if (text_.grammars == nullptr) {
    return replies_.error(parsed->exchange,
                          {ErrorCode::kInvalidArgument,
                           "structured output needs the model's own tokenizer; this server has "
                           "another one (--tokenizer)",
                           {}});
  }
  if (text_.grammars->knows(grammar)) return read_prompts(std::move(parsed));
  const std::string owner = parsed->lease.key().name();
  const Exchange exchange = parsed->exchange;
  work_.post_long_turn(owner, exchange, [this, owner, parsed = std::move(parsed)] {
    const Status status = text_.grammars->check(parsed->request.sampling.grammar);
    if (!status) {
      Error error = status.error();
      if (error.code == ErrorCode::kInvalidArgument)
        error.message = "the answer's schema or grammar is refused: " + error.message;
      return replies_.error(parsed->exchange, error);
    }
    work_.post_turn(owner, parsed->exchange, [this, parsed] { read_prompts(parsed); });
  });
}

void RequestReader::read_prompts(Parsed parsed) {
  ApiRequest& request = parsed->request;
  if (!request.bad_words.empty()) {
    auto words = encode_bad_words(tokens_.tokenizer(), std::exchange(request.bad_words, {}));
    if (!words) return replies_.error(parsed->exchange, words.error());
    request.sampling.bad_words = std::move(*words);
  }
  const auto all = tokens_.take_some(request, parsed->prompts);
  if (!all) return replies_.error(parsed->exchange, all.error());
  if (!*all) {
    const std::string owner = parsed->lease.key().name();
    const Exchange exchange = parsed->exchange;
    return work_.post_turn(owner, exchange,
                           [this, parsed = std::move(parsed)] { read_prompts(parsed); });
  }
  start_session(*parsed);
}

void RequestReader::start_session(ParsedRequest& parsed) {
  AnswerHead head = head_of(parsed, engine_.config());
  if (parsed.request.pooling) {
    auto session = std::make_shared<PoolingSession>(
        std::move(parsed.request), std::move(head), engine_, replies_.metrics(),
        std::move(parsed.exchange), std::move(parsed.lease), work_.weak_from_this());
    return session->start(std::move(parsed.prompts));
  }
  auto session = std::make_shared<CompletionSession>(
      std::move(parsed.request), std::move(head), engine_, text_.tokenizer, replies_.metrics(),
      std::move(parsed.exchange), std::move(parsed.lease), work_.weak_from_this(),
      parsed.make_writer, text_.grammars);
  session->start(std::move(parsed.prompts));
}

}  // namespace refrain
