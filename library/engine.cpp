#include "library/refrain/engine.h"

#include <utility>

#include "runtime/offline/local_session.h"

namespace refrain::v1 {
namespace {

[[noreturn]] void raise(const Error& error) {
  using Kind = EngineError::Kind;
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kTooLarge:
      throw EngineError(Kind::kInvalid, error.message);
    case ErrorCode::kCancelled:
      throw EngineError(Kind::kStopped, error.message);
    case ErrorCode::kInternal:
      throw EngineError(Kind::kInternal, error.message);
    default:
      throw EngineError(Kind::kUnavailable, error.message);
  }
}

template <class T>
T value_of(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

void add_likely(LocalSession& session, const std::vector<TokenLogprob>& top, EngineToken& token) {
  for (const TokenLogprob& likely : top)
    token.top.push_back({likely.token, session.token_text(likely.token), likely.logprob});
}

EngineOutput output_of(LocalSession& session, SessionOutput&& piece) {
  RequestOutput& from = piece.output;
  EngineOutput output;
  output.id = from.id;
  for (const TokenOutput& token : from.tokens) {
    EngineToken& to = output.tokens.emplace_back();
    to.id = token.token;
    to.text = session.token_text(token.token);
    to.logprob = token.logprob;
    add_likely(session, token.top, to);
  }
  for (const PromptToken& token : piece.prompt) {
    EngineToken& to = output.prompt.emplace_back();
    to.id = token.token;
    to.text = session.token_text(token.token);
    to.logprob = token.logprob;
    to.rank = token.rank;
    add_likely(session, token.top, to);
  }
  output.text = std::move(from.text);
  if (from.finish != FinishReason::kNone) output.finish_reason = to_string(from.finish);
  output.stop_token = from.stop_token;
  if (!from.stop_token) output.stop_reason = std::move(from.stop_reason);
  if (from.error) output.error = from.error->message;
  output.cached_tokens = from.cached_tokens;
  return output;
}

}  // namespace

Engine::Engine(const std::vector<std::string>& options)
    : session_(value_of(LocalSession::create(options))) {}

Engine::~Engine() = default;

bool Engine::wait_ready(Milliseconds timeout) { return value_of(session_->wait_ready(timeout)); }

EngineRequest Engine::add(const std::string& request) {
  LocalSession::Added added = value_of(session_->add(request));
  return {added.id, std::move(added.prompt)};
}

std::vector<EngineOutput> Engine::poll(Milliseconds timeout) {
  std::vector<EngineOutput> outputs;
  for (SessionOutput& output : value_of(session_->poll(timeout))) {
    outputs.push_back(output_of(*session_, std::move(output)));
  }
  return outputs;
}

bool Engine::load_adapter(const std::string& name, const std::string& path, Milliseconds timeout) {
  return value_of(session_->load_adapter(name, path, timeout));
}

bool Engine::unload_adapter(const std::string& name, Milliseconds timeout) {
  return value_of(session_->unload_adapter(name, timeout));
}

void Engine::cancel(uint64_t id) { session_->cancel(id); }

void Engine::stop() { session_->stop(); }

}  // namespace refrain::v1
