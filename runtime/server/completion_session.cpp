#include "runtime/server/completion_session.h"

#include <chrono>
#include <utility>

#include "runtime/server/answer_size.h"
#include "runtime/server/echo.h"
#include "runtime/server/prompt_logprobs.h"
#include "runtime/server/structured_output.h"
#include "runtime/text/tokenizer.h"

namespace refrain {

CompletionSession::CompletionSession(ApiRequest request, AnswerHead head, Engine& engine,
                                     std::shared_ptr<const text::Tokenizer> tokenizer,
                                     std::shared_ptr<Metrics> metrics,
                                     std::shared_ptr<HttpExchange> exchange, KeyLease lease,
                                     std::weak_ptr<TextWork> work, const MakeWriter& make_writer,
                                     std::shared_ptr<GrammarHelper> grammars)
    : request_(std::move(request)),
      head_(std::move(head)),
      engine_(engine),
      tokenizer_(std::move(tokenizer)),
      writer_(make_writer(head_, request_, *tokenizer_)),
      metrics_(std::move(metrics)),
      exchange_(std::move(exchange)),
      grammars_(std::move(grammars)),
      lease_(std::move(lease)),
      work_(std::move(work)),
      times_{.begun = steady_clock().now()} {}

void CompletionSession::start(std::vector<std::vector<TokenId>> prompts) {
  const auto self = shared_from_this();
  if (!make_choices(prompts)) return;
  const auto n = static_cast<size_t>(request_.n);
  for (size_t i = 0; i < prompts.size() * n; ++i) {
    const bool last = i % n == n - 1;  // of this prompt's choices
    auto id = submit(i, last ? std::move(prompts[i / n]) : prompts[i / n]);
    // Not while it submits: outputs come on a thread that must not wait for all choices.
    const std::lock_guard lock(mutex_);
    if (ended_) {  // another choice has failed
      if (id) engine_.cancel(*id);
      return;
    }
    if (!id) return fail_all(id.error());
    choices_[i].id = *id;
  }
  exchange_->on_disconnect([self] {
    const std::lock_guard guard(self->mutex_);
    if (self->ended_) return;
    self->cancel_rest();
    self->end();
  });
  const double interval = engine_.config().sse_keep_alive_interval;
  if (request_.stream && interval > 0) {
    exchange_->on_idle(to_duration(interval), [self] { self->keep_alive(); });
  }
}

bool CompletionSession::make_choices(const std::vector<std::vector<TokenId>>& prompts) {
  const std::lock_guard lock(mutex_);
  const auto n = static_cast<size_t>(request_.n);
  if (Status allowed = lease_.take(static_cast<int64_t>(prompts.size() * n)); !allowed) {
    metrics_->count_key_limit();
    fail_all(allowed.error());
    return false;
  }
  for (const auto& prompt : prompts) usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
  const int64_t max_model_len = engine_.config().worker.max_model_len;
  if (Status fits = check_answer_size(request_, prompts, max_model_len); !fits) {
    fail_all(fits.error());
    return false;
  }
  const auto echoes = echoed_texts(request_, prompts, max_model_len, *tokenizer_);
  if (!echoes) {
    fail_all(echoes.error());
    return false;
  }
  choices_.resize(prompts.size() * n);
  unfinished_ = choices_.size();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const std::vector<TokenId>& prompt = prompts[i / n];
    choices_[i].text.index = static_cast<int64_t>(i);
    if (head_.token_ids || request_.sampling.prompt_logprobs >= 0) {
      choices_[i].text.prompt = i % n == 0 ? std::make_shared<const std::vector<TokenId>>(prompt)
                                           : choices_[i - 1].text.prompt;
    }
    if (reads_answers()) {
      choices_[i].answer.emplace(
          ChatAnswerOptions{answer_format(), request_.thinking, request_.parallel_tool_calls,
                            request_.include_reasoning},
          request_.tools);
    }
    if (request_.echo) choices_[i].text.text = (*echoes)[i / n];
  }
  return true;
}

Result<RequestId> CompletionSession::submit(size_t index, std::vector<TokenId> prompt) {
  const int64_t room = engine_.config().worker.max_model_len - static_cast<int64_t>(prompt.size());
  GenerateRequest generate =
      begin_request(request_, std::move(prompt), lease_.key().cache_salt(), exchange_->io_thread());
  generate.sampling = request_.sampling;
  if (head_.chat && !generate.sampling.grammar.empty())
    REFRAIN_RETURN_IF_ERROR(
        begin_behind_reasoning(answer_format(), request_.thinking, *tokenizer_, generate.sampling));
  if (head_.chat && answer_format().is_harmony()) generate.sampling.skip_special_tokens = false;
  // Choices of one prompt share what is told of it; each stream tells it anew.
  if (!request_.stream && index % static_cast<size_t>(request_.n) != 0)
    generate.sampling.prompt_logprobs = -1;
  if (generate.sampling.seed) *generate.sampling.seed += index % static_cast<size_t>(request_.n);
  // An echo alone needs the step of the first token too.
  generate.sampling.max_tokens = std::max<int64_t>(request_.max_tokens.value_or(room), 1);
  const auto& names = engine_.config().served_model_names;
  if (std::ranges::find(names, head_.model) == names.end()) {
    const auto adapter = engine_.find_adapter(head_.model);
    if (!adapter)
      return fail(ErrorCode::kNotFound, "the model '{}' has been unloaded", head_.model);
    generate.adapter = *adapter;
  }
  return engine_.submit(std::move(generate),
                        [self = shared_from_this(), index](RequestOutput output) {
                          self->on_output(index, std::move(output));
                        });
}

void CompletionSession::on_output(size_t index, RequestOutput output) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (output.error) {
    if (output.error->field == kSlowGrammarField && grammars_ != nullptr)
      grammars_->refuse(request_.sampling.grammar,
                        "an answer showed that it takes too long to follow");
    return fail_all(*output.error);
  }
  Choice& choice = choices_[index];
  if (output.prompt && !are_numbers(*output.prompt)) return fail_all(no_finite_logits());
  if (output.prompt) choice.text.scores = std::move(output.prompt);
  if (request_.max_tokens == 0) {
    output.text.clear();
    output.tokens.clear();
    output.output_tokens = 0;
    if (output.finish == FinishReason::kStop) output.finish = FinishReason::kLength;
    output.stop_token.reset();
    output.stop_reason.clear();
  }
  const TimePoint now = steady_clock().now();
  if (!output.tokens.empty()) {
    metrics_->observe_tokens(times_.begun, times_.last_token, now, !times_.first_token);
    if (!times_.first_token) times_.scheduled = output.scheduled;
    if (!times_.first_token) times_.first_token = now;
    times_.last_token = now;
    times_.longest_answer = std::max(times_.longest_answer, output.output_tokens);
    usage_.completion_tokens += static_cast<int64_t>(output.tokens.size());
    if (Status fits = check_told(request_, usage_.prompt_tokens, usage_.completion_tokens); !fits)
      return fail_all(fits.error());
  }
  if (output.finish != FinishReason::kNone) {
    if (index % static_cast<size_t>(request_.n) == 0) usage_.cached_tokens += output.cached_tokens;
    choice.text.finish = output.finish;
    choice.text.stop_reason = output.stop_reason;
    choice.text.stop_token = output.stop_token;
    --unfinished_;
  }
  if (request_.stream) {
    stream_output(choice, std::move(output));
  } else {
    collect_output(choice, std::move(output));
  }
  if (unfinished_ == 0) finish();
}

void CompletionSession::begin_stream() {
  if (std::exchange(stream_begun_, true)) return;
  exchange_->begin_stream(200, "text/event-stream; charset=utf-8",
                          {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
}

// While the request waits in the queue or for its workers, in its prompt and between two parts.
void CompletionSession::keep_alive() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  begin_stream();
  exchange_->write(": keep-alive\n\n");  // a comment: clients pass it over
}

text::AnswerFormat CompletionSession::answer_format() const {
  text::AnswerFormat format{engine_.config().tool_call_parser, engine_.config().reasoning_parser};
  if (!request_.forces_tool_call) return format;
  return {"llama3_json", format.is_harmony() ? "" : format.reasoning_parser};
}

// A chat's text is read for what else it may hold: reasoning, or calls of the request's tools.
bool CompletionSession::reads_answers() const {
  if (!head_.chat) return false;
  const text::AnswerFormat format = answer_format();
  return !format.reasoning_parser.empty() || format.is_harmony() || !request_.tools.is_null();
}

void CompletionSession::collect_output(Choice& choice, RequestOutput output) {
  if (choice.answer) {
    ChatParts whole{std::move(choice.text.reasoning), std::move(choice.text.text),
                    std::move(choice.text.calls)};
    choice.answer->collect(output.text, output.finish != FinishReason::kNone, whole);
    choice.text.reasoning = std::move(whole.reasoning);
    choice.text.text = std::move(whole.content);
    choice.text.calls = std::move(whole.calls);
    choice.text.called = choice.answer->has_called();
  } else {
    choice.text.text += output.text;
  }
  if (!head_.logprobs && !head_.token_ids) return;
  choice.text.tokens.insert(choice.text.tokens.end(), output.tokens.begin(), output.tokens.end());
}

void CompletionSession::stream_output(Choice& choice, RequestOutput output) {
  begin_stream();
  ChoiceText part;
  part.index = choice.text.index;
  if (request_.continuous_usage) part.usage = Usage{output.prompt_tokens, 0};
  if (!std::exchange(choice.opened, true) && head_.chat) {
    const auto prompt = std::exchange(choice.text.prompt, nullptr);
    if (head_.token_ids) part.prompt = prompt;
    exchange_->write(writer_->begin(part));
    part.prompt.reset();
  }
  if (part.usage) part.usage->completion_tokens = output.output_tokens;
  part.text = std::move(choice.text.text) + output.text;  // an echoed prompt comes first
  choice.text.text.clear();
  if (choice.answer) {
    ChatParts parts = choice.answer->stream(part.text, output.finish != FinishReason::kNone);
    part.text = std::move(parts.content);
    part.reasoning = std::move(parts.reasoning);
    part.calls = std::move(parts.calls);
    part.called = choice.answer->has_called();
  }
  part.tokens = std::move(output.tokens);
  part.finish = output.finish;
  part.stop_reason = std::move(output.stop_reason);
  part.stop_token = output.stop_token;
  const bool says_nothing = part.text.empty() && part.reasoning.empty() && part.calls.empty();
  if (says_nothing && part.finish == FinishReason::kNone &&
      (part.tokens.empty() || !(head_.logprobs || head_.token_ids))) {
    return;  // held back: half a character, the beginning of a stop string or of a call
  }
  part.prompt = std::move(choice.text.prompt);  // with the first part only
  part.scores = std::move(choice.text.scores);
  exchange_->write(writer_->part(part, choice.sent_characters));
  if (head_.logprobs) choice.sent_characters += count_characters(part.text);
}

// From here the key may have another request, also before the client has read this one's end.
void CompletionSession::end() {
  ended_ = true;
  lease_.release();
}

// A whole answer that tells so much takes too long to write for the thread of a connection.
bool CompletionSession::is_long() const {
  constexpr int64_t kManyTokens = 1000;
  const bool tells = head_.logprobs || head_.token_ids || head_.num_prompt_logprobs >= 0;
  return !request_.stream && tells && usage_.prompt_tokens + usage_.completion_tokens > kManyTokens;
}

void CompletionSession::finish() {
  const bool apart = is_long();
  const auto work = work_.lock();
  if (apart && work == nullptr)
    return fail_all({ErrorCode::kUnavailable, "the server is shutting down", {}});
  end();
  metrics_->count_http(200);
  times_.ended = steady_clock().now();
  metrics_->observe_request(times_, usage_.prompt_tokens, usage_.completion_tokens);
  if (request_.stream) {
    exchange_->write(writer_->end(usage_));
    exchange_->end_stream();
    return;
  }
  for (size_t i = 0; i < choices_.size(); ++i)
    choices_[i].text.scores = choices_[i - i % static_cast<size_t>(request_.n)].text.scores;
  std::vector<ChoiceText> texts;
  for (Choice& choice : choices_) texts.push_back(std::move(choice.text));
  if (!apart) return exchange_->reply(200, "application/json", writer_->whole(texts, usage_));
  // Nothing else touches what has ended.
  work->post_last(
      lease_.key().name(), exchange_, [self = shared_from_this(), texts = std::move(texts)] {
        self->exchange_->reply(200, "application/json", self->writer_->whole(texts, self->usage_));
      });
}

void CompletionSession::fail_all(const Error& error) {
  cancel_rest();
  end();
  HttpReply reply = error_reply(error, engine_);
  metrics_->count_http(reply.status);
  if (stream_begun_) {
    exchange_->write(writer_->error(reply.body));
    exchange_->end_stream();
    return;
  }
  exchange_->reply(std::move(reply));
}

void CompletionSession::cancel_rest() {
  for (const Choice& choice : choices_) {
    if (choice.id != 0 && choice.text.finish == FinishReason::kNone) engine_.cancel(choice.id);
  }
}

}  // namespace refrain
