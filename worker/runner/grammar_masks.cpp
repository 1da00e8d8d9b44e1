#include "worker/runner/grammar_masks.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "runtime/base/log.h"

namespace refrain::worker {
namespace {

using Follower = GrammarMasks::Follower;

template <class T>
bool is_ready(const std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool is_compiled(const Follower& follower) {
  return !follower.compiling.valid() || is_ready(follower.compiling);
}

std::optional<GrammarMatcher>& matcher_of(Follower& follower) {
  if (follower.compiling.valid()) follower.matcher = follower.compiling.get();
  return follower.matcher;
}

void take(Follower& follower, const std::vector<TokenId>& tokens) {
  std::optional<GrammarMatcher>& matcher = matcher_of(follower);
  for (const TokenId token : tokens) {
    follower.bad_words.accept(token);
    if (matcher && (token < 0 || !matcher->accept(token))) matcher.reset();
  }
}

}  // namespace

GrammarMasks::GrammarMasks(std::filesystem::path model_directory, int64_t vocab_size,
                           std::vector<TokenId> end_tokens, int32_t num_slots, int num_threads)
    : model_directory_(std::move(model_directory)),
      vocab_size_(vocab_size),
      end_tokens_(std::move(end_tokens)),
      slots_(static_cast<size_t>(num_slots)),
      lanes_(static_cast<size_t>(num_threads)) {}

GrammarMasks::~GrammarMasks() {
  for (Lane& lane : lanes_) {
    {
      const std::lock_guard lock(lane.mutex);
      lane.stop = true;
    }
    lane.changed.notify_one();
    if (lane.thread.joinable()) lane.thread.join();
  }
}

void GrammarMasks::set_up(const ipc::SlotSetup& setup) {
  std::shared_ptr<Follower>& follower = slots_[static_cast<size_t>(setup.slot)];
  follower.reset();
  if (!setup.follows_output()) return;
  follower = std::make_shared<Follower>();
  follower->lane = static_cast<size_t>(setup.slot) % lanes_.size();
  Lane& lane = lanes_[follower->lane];
  if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { run(lane); });
  follower->bad_words = BadWords(setup);
  follower->has_grammar = !setup.grammar.empty();
  if (!follower->has_grammar) return;
  follower->compiling = std::async(
      std::launch::async, [this, source = std::string(setup.grammar.begin(), setup.grammar.end()),
                           tokens = setup.output_tokens] { return compile(source, tokens); });
}

void GrammarMasks::compile_ahead(std::string source, std::function<void()> done) {
  while (!ahead_.empty() && is_ready(ahead_.front())) ahead_.pop_front();
  ahead_.push_back(
      std::async(std::launch::async, [this, source = std::move(source), done = std::move(done)] {
        compile(source, {});
        done();
      }));
}

// The tokenizer is read for the first grammar: most groups never see one.
std::optional<GrammarMatcher> GrammarMasks::compile(const std::string& source,
                                                    const std::vector<TokenId>& tokens) {
  const std::lock_guard lock(compiler_mutex_);
  if (!compiler_) {
    auto tokenizer = text::Tokenizer::load(model_directory_);
    if (!tokenizer) {
      log::error("a grammar has no tokenizer: {}", tokenizer.error().message);
      return std::nullopt;
    }
    compiler_ = std::make_unique<GrammarCompiler>(*tokenizer, vocab_size_, end_tokens_);
  }
  auto matcher = compiler_->compile(source);
  if (!matcher) {
    log::error("a grammar that the coordinator let pass does not compile: {}",
               matcher.error().message);
    return std::nullopt;
  }
  const bool kept =
      std::ranges::all_of(tokens, [&](TokenId token) { return matcher->accept(token); });
  if (!kept) {
    log::error("an answer of {} tokens does not keep to its grammar", tokens.size());
    return std::nullopt;
  }
  return std::move(*matcher);
}

void GrammarMasks::post(std::vector<Taken> taken, uint32_t turn, std::vector<Row> rows) {
  if (taken.empty() && rows.empty()) return;
  std::vector<Work> of_lanes(lanes_.size(), Work{.turn = turn});
  for (Taken& one : taken) of_lanes[one.follower->lane].taken.push_back(std::move(one));
  for (Row& row : rows) of_lanes[row.follower->lane].rows.push_back(std::move(row));
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (of_lanes[i].taken.empty() && of_lanes[i].rows.empty()) continue;
    {
      const std::lock_guard lock(lanes_[i].mutex);
      lanes_[i].work.push_back(std::move(of_lanes[i]));
    }
    lanes_[i].changed.notify_one();
  }
}

void GrammarMasks::run(Lane& lane) {
  std::unique_lock lock(lane.mutex);
  while (true) {
    lane.changed.wait(lock, [&lane] { return lane.stop || !lane.work.empty(); });
    if (lane.stop) return;
    Work work = std::move(lane.work.front());
    lane.work.pop_front();
    lock.unlock();
    for (Taken& taken : work.taken) take(*taken.follower, taken.tokens);
    // Those that still compile keep no other row waiting.
    std::stable_partition(work.rows.begin(), work.rows.end(),
                          [](const Row& row) { return is_compiled(*row.follower); });
    for (Row& row : work.rows) {
      fill(row);
      __atomic_store_n(row.ready, work.turn, __ATOMIC_RELEASE);
    }
    work = {};
    lock.lock();
  }
}

void GrammarMasks::fill(Row& row) const {
  const std::span<uint32_t> mask(row.mask, static_cast<size_t>(vocab_size_ + 31) / 32);
  std::optional<GrammarMatcher>& matcher = matcher_of(*row.follower);
  if (row.follower->has_grammar && !matcher) {
    std::ranges::fill(mask, 0u);
    return;
  }
  std::ranges::fill(mask, ~0u);
  if (matcher) matcher->fill(mask);
  row.follower->bad_words.forbid(mask);
  // The last word's bits beyond the vocabulary.
  if (vocab_size_ % 32 != 0) mask.back() &= (1u << (vocab_size_ % 32)) - 1;
  if (row.bounds.empty()) return;
  const auto both = [&](size_t i) { return mask[i] & row.bounds[i]; };
  bool any = false;
  for (size_t i = 0; i < mask.size() && !any; ++i) any = both(i) != 0;
  if (!any && row.may_end) return;
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = both(i);
}

}  // namespace refrain::worker
