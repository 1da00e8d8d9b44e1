#include "tests/sim/clients.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/sim/reference.h"

namespace refrain::sim {

Clients::Clients(ManualScheduler& scheduler, Cluster& cluster, LoadOptions options,
                 std::shared_ptr<const text::Tokenizer> tokenizer)
    : scheduler_(scheduler),
      cluster_(cluster),
      options_(options),
      tokenizer_(std::move(tokenizer)),
      executor_(scheduler.make_executor("clients")) {
  cluster_.on_coordinator_gone = [this](int life) {
    for (const auto& asked : asked_)
      if (asked->life == life && !asked->ended()) asked->coordinator_gone = true;
  };
}

void Clients::start() {
  to_come_ = options_.requests;
  const auto over = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(options_.over).count());
  for (int i = 0; i < options_.requests; ++i)
    executor_->post_after(std::chrono::microseconds(scheduler_.random(over)), [this] { arrive(); });
  to_come_ += options_.poison;
  for (int i = 0; i < options_.poison; ++i)
    executor_->post_after(std::chrono::microseconds(scheduler_.random(over)),
                          [this] { arrive_poison(); });
}

bool Clients::done() const {
  return to_come_ == 0 &&
         std::ranges::all_of(asked_, [](const auto& asked) { return asked->ended(); });
}

// One HTTP request: n answers to one prompt, with seeds that follow each other.
void Clients::arrive() {
  --to_come_;
  GenerateRequest request = random_request();
  const uint64_t n = chance(100) ? 2 + scheduler_.random(2) : 1;
  for (uint64_t i = 0; i < n; ++i) {
    submit(request);
    if (request.sampling.seed) ++*request.sampling.seed;
  }
}

void Clients::arrive_poison() {
  --to_come_;
  GenerateRequest request = random_request();
  const uint64_t kind = scheduler_.random(5);
  Poison poison;
  poison.kind = kind == 0  ? Poison::Kind::kSpins
                : kind < 3 ? Poison::Kind::kKilled
                           : Poison::Kind::kDeviceError;
  poison.rank = static_cast<int32_t>(scheduler_.random(3));
  poison.after = static_cast<int32_t>(scheduler_.random(16));
  request.sampling.seed = poison.seed();
  submit(std::move(request));
}

GenerateRequest Clients::random_request() {
  GenerateRequest request;
  const uint64_t longest = static_cast<uint64_t>(options_.longest_prompt);
  const uint64_t length = 1 + scheduler_.random(longest);
  // Few beginnings, so that prompts share cached blocks; most differ somewhere.
  const auto family = static_cast<TokenId>(1 + 100 * scheduler_.random(3));
  for (uint64_t i = 0; i < length; ++i)
    request.prompt.push_back(family + static_cast<TokenId>(i % 50));
  if (chance(600)) request.prompt.back() = static_cast<TokenId>(1 + scheduler_.random(499));
  if (chance(200)) request.cache_salt = "another key";
  request.adapter = static_cast<AdapterId>(asked_.size() * 5 % 7) % (1 + cluster_.num_adapters());
  if (chance(100)) request.timeout = std::chrono::milliseconds(50 + scheduler_.random(20'000));
  request.sampling.temperature = 0;
  request.sampling.max_tokens = static_cast<int64_t>(1 + scheduler_.random(24));
  if (!options_.plain) choose_sampling(request);
  return request;
}

void Clients::choose_sampling(GenerateRequest& request) {
  SamplingParams& sampling = request.sampling;
  if (chance(500)) {
    sampling.temperature = 0.8;
    if (chance(800)) sampling.seed = scheduler_.random(1'000'000);
  }
  if (chance(100)) sampling.presence_penalty = 0.5;
  if (chance(100)) sampling.repetition_penalty = 1.25;
  if (chance(200)) sampling.logprobs = 0;
  if (chance(50)) sampling.grammar = "regex:.*";
  if (chance(200)) sampling.ignore_eos = true;
  if (chance(100)) sampling.include_stop_str_in_output = true;
  if (chance(200))
    for (int i = 0; i < 20; ++i)
      sampling.stop_token_ids.push_back(static_cast<TokenId>(1 + scheduler_.random(499)));
  if (chance(150)) {
    choose_stop_string(request);
  } else if (chance(200)) {
    sampling.min_tokens =
        static_cast<int64_t>(scheduler_.random(static_cast<uint64_t>(sampling.max_tokens) + 1));
  }
}

// A piece of the text that the request would answer, so that it matters; needs to know the seed.
void Clients::choose_stop_string(GenerateRequest& request) {
  if (request.sampling.temperature > 0 && !request.sampling.seed) return;
  const Reference alone = reference_answer(request, setup_of(request.sampling),
                                           options_.max_model_len, model_now(), *tokenizer_);
  if (alone.text.size() < 4) return;
  const auto begins_character = [&](size_t at) {
    return at == alone.text.size() || (static_cast<unsigned char>(alone.text[at]) & 0xC0) != 0x80;
  };
  size_t from = scheduler_.random(alone.text.size() - 3);
  while (!begins_character(from)) ++from;
  size_t to = std::min(from + 1 + scheduler_.random(4), alone.text.size());
  while (!begins_character(to)) ++to;
  if (from < to) request.sampling.stop = {alone.text.substr(from, to - from)};
}

void Clients::submit(GenerateRequest request) {
  Engine* engine = cluster_.engine();
  if (engine == nullptr) {
    ++refused_;
    return;
  }
  auto asked = std::make_unique<Asked>();
  Asked& mine = *asked;
  mine.life = cluster_.life();
  mine.request = request;
  mine.poison = Poison::of(request.sampling.seed.value_or(0)).has_value();
  mine.asked_at = scheduler_.clock().now();
  const auto id = engine->submit(std::move(request), [this, &mine](RequestOutput output) {
    on_output(mine, std::move(output));
  });
  if (!id) {
    ++refused_;
    if (id.error().code != ErrorCode::kOverloaded)  // the queue is full
      violations.push_back("a request was refused: " + id.error().message);
    return;
  }
  mine.id = *id;
  asked_.push_back(std::move(asked));
  note(fmt::format("request {}.{}: {} prompt tokens, at most {} more", mine.life, mine.id,
                   mine.request.prompt.size(), mine.request.sampling.max_tokens));
  if (!chance(options_.cancels)) return;
  const bool early = chance(300);
  const std::chrono::microseconds wait(scheduler_.random(early ? 2'000 : 400'000));
  executor_->post_after(wait, [this, &mine] {
    if (cluster_.engine() == nullptr || cluster_.life() != mine.life || mine.ended()) return;
    note(fmt::format("request {}.{} is cancelled", mine.life, mine.id));
    mine.cancelled = true;
    mine.cancelled_at = scheduler_.clock().now();
    cluster_.engine()->cancel(mine.id);
    if (chance(300)) cluster_.engine()->cancel(mine.id);
  });
}

void Clients::on_output(Asked& asked, RequestOutput output) {
  const auto wrong = [&](const std::string& what) {
    violations.push_back(fmt::format("request {}.{}: {}", asked.life, asked.id, what));
  };
  if (asked.finishes > 0) wrong("an output after its end (I1)");
  if (asked.coordinator_gone) wrong("an output after its coordinator's end (I1, R-10)");
  if (output.id != asked.id) wrong("an output of another request (I4)");
  for (const TokenOutput& token : output.tokens) {
    asked.tokens.push_back(token.token);
    if (asked.request.sampling.logprobs >= 0 && token.logprob != logprob_of(token.token))
      wrong("a log-probability of another token (I4)");
  }
  if (output.output_tokens != static_cast<int64_t>(asked.tokens.size()))
    wrong("its tokens are miscounted (I2)");
  if (output.prompt_tokens != static_cast<int64_t>(asked.request.prompt.size()))
    wrong("its prompt is miscounted");
  if (output.cached_tokens >= output.prompt_tokens && output.cached_tokens > 0)
    wrong("its whole prompt came from the cache");
  asked.text += output.text;
  if (output.finish == FinishReason::kNone) return;
  asked.finish = output.finish;
  asked.stop_reason = output.stop_reason;
  asked.error = output.error;
  asked.ended_at = scheduler_.clock().now();
  ++asked.finishes;
  note(fmt::format("request {}.{} ends: {} after {} tokens{}", asked.life, asked.id,
                   to_string(output.finish), asked.tokens.size(),
                   output.error ? ": " + output.error->message : ""));
}

}  // namespace refrain::sim
