#include "worker/runner/grammar_masks.h"

#include <time.h>

#include <algorithm>

#include "runtime/base/log.h"

namespace refrain::worker {
namespace {

using Follower = GrammarMasks::Follower;
using Row = GrammarMasks::Row;

void set_ready(uint32_t* ready, uint32_t turn) { __atomic_store_n(ready, turn, __ATOMIC_RELEASE); }

void take(Follower& follower, const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    follower.bad_words.accept(token);
    if (follower.reasoning.take(token)) continue;
    if (!follower.forced.empty() && follower.forced.front() == token) {
      follower.forced.pop_front();
    } else {
      follower.forced.clear();
    }
    if (follower.matcher && (token < 0 || !follower.matcher->accept(token)))
      follower.matcher.reset();
  }
}

// How the answer goes on, `most` tokens of it. A guess: the model may cut the same text otherwise.
std::vector<TokenId> forced_tokens(Follower& follower, int32_t most) {
  const ReasoningGate& reasoning = follower.reasoning;
  if (!follower.matcher || reasoning.reasons() || reasoning.may_begin_with() >= 0) return {};
  if (follower.forced.empty()) {
    const std::string text = follower.matcher->forced_text();
    if (text.empty()) return {};
    const auto tokens = follower.tokenizer->encode(text, /*add_special_tokens=*/false);
    if (tokens) follower.forced.assign(tokens->begin(), tokens->end());
  }
  const auto count = std::min<ptrdiff_t>(most, std::ssize(follower.forced));
  return {follower.forced.begin(), follower.forced.begin() + count};
}

void fill(Follower& follower, const Row& row, int64_t vocab_size, std::vector<uint32_t>& mask) {
  if (follower.has_grammar && !follower.matcher) {
    std::ranges::fill(mask, 0u);
    return;
  }
  std::ranges::fill(mask, ~0u);
  if (follower.matcher && !follower.reasoning.reasons()) follower.matcher->fill(mask);
  if (const TokenId begin = follower.reasoning.may_begin_with(); begin >= 0)
    mask[static_cast<size_t>(begin) / 32] |= 1u << (begin % 32);
  follower.bad_words.forbid(mask);
  // The last word's bits beyond the vocabulary.
  if (vocab_size % 32 != 0) mask.back() &= (1u << (vocab_size % 32)) - 1;
  if (row.bounds.empty()) return;
  const auto both = [&](size_t i) { return mask[i] & row.bounds[i]; };
  bool any = false;
  for (size_t i = 0; i < mask.size() && !any; ++i) any = both(i) != 0;
  if (!any && row.may_end) return;
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = both(i);
}

struct Job {
  Row row;
  bool done = false;  // all of it is published
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Drafts first: the step begins with them, and samples when it has run. Masks behind the first that
// the grammar does not take are not made, as nothing is sampled by them.
void make(Job& job, uint32_t turn, int64_t vocab_size) {
  const double begun = thread_seconds();
  const Row& row = job.row;
  Follower& follower = *row.follower;
  PatientStrands::Strand& strand = *follower.strand;
  std::vector<TokenId> drafts;
  if (row.drafts != nullptr) {
    drafts = forced_tokens(follower, row.num_logits - 1);
    strand.publish([&] {
      std::fill_n(row.drafts, row.num_logits - 1, -1);
      std::ranges::copy(drafts, row.drafts);
      set_ready(row.drafts_ready, turn);
    });
  }
  std::vector<uint32_t> mask(static_cast<size_t>(vocab_size + 31) / 32);
  int made = 0;
  while (true) {
    fill(follower, row, vocab_size, mask);
    strand.publish([&] {
      std::ranges::copy(mask, row.mask + static_cast<size_t>(made) * mask.size());
      set_ready(row.ready + made, turn);
    });
    const auto next = static_cast<size_t>(made);
    if (next >= drafts.size() || !follower.matcher->accept(drafts[next])) break;
    ++made;
  }
  if (follower.matcher) follower.matcher->roll_back(made);
  strand.publish([&] {
    for (int32_t i = made + 1; i < row.num_logits; ++i) set_ready(row.ready + i, turn);
    job.done = true;
  });
  const double usual = (1 + made) * GrammarMasks::kUsualSeconds;
  follower.slow_seconds += std::max(0.0, thread_seconds() - begun - usual);
  if (follower.slow_seconds > GrammarMasks::kMostSlowSeconds) strand.give_up();
}

void make_none(const Job& job, uint32_t turn, int64_t vocab_size) {
  if (job.done) return;  // its memory may be another row's by now
  const Row& row = job.row;
  if (row.drafts != nullptr) {
    std::fill_n(row.drafts, row.num_logits - 1, -1);
    set_ready(row.drafts_ready, turn);
  }
  std::fill_n(row.mask, row.num_logits * ((vocab_size + 31) / 32), 0u);
  for (int32_t i = 0; i < row.num_logits; ++i) set_ready(row.ready + i, turn);
}

}  // namespace

GrammarMasks::GrammarMasks(std::filesystem::path model_directory, int64_t vocab_size,
                           std::vector<TokenId> end_tokens, int32_t num_slots, int num_threads,
                           Duration patience)
    : model_directory_(std::move(model_directory)),
      vocab_size_(vocab_size),
      end_tokens_(std::move(end_tokens)),
      slots_(static_cast<size_t>(num_slots)),
      strands_(num_threads, patience) {}

GrammarMasks::~GrammarMasks() {
  const std::lock_guard lock(ahead_mutex_);
  ahead_.clear();
}

void GrammarMasks::set_up(const ipc::SlotSetup& setup) {
  std::shared_ptr<Follower>& follower = slots_[static_cast<size_t>(setup.slot)];
  follower.reset();
  if (!setup.follows_output()) return;
  follower = std::make_shared<Follower>();
  follower->strand = strands_.make_held();
  follower->bad_words = BadWords(setup);
  follower->has_grammar = !setup.grammar.empty();
  if (!follower->has_grammar) return strands_.release(follower->strand);
  run_apart([this, follower, setup] {
    begin(*follower, setup);
    strands_.release(follower->strand);
  });
}

void GrammarMasks::compile_ahead(std::string source, std::function<void()> done) {
  const std::lock_guard lock(ahead_mutex_);
  ahead_.push_back({std::move(source), std::move(done)});
  if (compiling_ahead_ == kMostCompiledAhead) return;
  ++compiling_ahead_;
  run_apart([this] { compile_waiting(); });
}

void GrammarMasks::compile_waiting() {
  std::unique_lock lock(ahead_mutex_);
  while (!ahead_.empty()) {
    const Ahead next = std::move(ahead_.front());
    ahead_.pop_front();
    lock.unlock();
    compile(next.source);
    next.done();
    lock.lock();
  }
  --compiling_ahead_;
}

void GrammarMasks::run_apart(std::function<void()> work) {
  std::erase_if(apart_, [](const std::future<void>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  apart_.push_back(std::async(std::launch::async, std::move(work)));
}

// The tokenizer is read for the first grammar: most groups never see one. Null: there is no
// compiler.
GrammarCompiler* GrammarMasks::compiler() {
  const std::lock_guard lock(compiler_mutex_);
  if (compiler_) return &*compiler_;
  auto tokenizer = text::Tokenizer::load(model_directory_);
  if (!tokenizer) {
    log::error("a grammar has no tokenizer: {}", tokenizer.error().message);
    return nullptr;
  }
  auto compiler = GrammarCompiler::create(*tokenizer, vocab_size_, end_tokens_);
  if (!compiler) {
    log::error("a grammar: {}", compiler.error().message);
    return nullptr;
  }
  tokenizer_ = std::make_shared<const text::Tokenizer>(std::move(*tokenizer));
  return &compiler_.emplace(std::move(*compiler));
}

std::unique_ptr<GrammarMatcher> GrammarMasks::compile(const std::string& source) {
  GrammarCompiler* compiler = this->compiler();
  if (compiler == nullptr) return nullptr;
  auto matcher = compiler->compile(source);
  if (matcher) return std::move(*matcher);
  log::error("a grammar that the coordinator let pass does not compile: {}",
             matcher.error().message);
  return nullptr;
}

// As the answer so far leaves it.
void GrammarMasks::begin(Follower& follower, const ipc::SlotSetup& setup) {
  follower.matcher = compile({setup.grammar.begin(), setup.grammar.end()});
  follower.reasoning = ReasoningGate(setup);
  if (!follower.matcher) return;
  follower.tokenizer = tokenizer_;  // not written again since the first grammar
  BadWords of_output = std::exchange(follower.bad_words, {});  // it has the output already
  take(follower, setup.output_tokens);
  follower.bad_words = std::move(of_output);
  if (!follower.matcher)
    log::error("an answer of {} tokens does not keep to its grammar", setup.output_tokens.size());
}

void GrammarMasks::post(std::vector<Taken> taken, uint32_t turn, std::vector<Row> rows) {
  std::vector<PatientStrands::Work> all;
  all.reserve(taken.size() + rows.size());
  for (Taken& one : taken) {
    const auto strand = one.follower->strand;
    all.push_back({strand, [one = std::move(one)] { take(*one.follower, one.tokens); }, [] {}});
  }
  for (Row& row : rows) {
    const auto job = std::make_shared<Job>(Job{std::move(row)});
    all.push_back({job->row.follower->strand,
                   [job, turn, vocab = vocab_size_] { make(*job, turn, vocab); },
                   [job, turn, vocab = vocab_size_] { make_none(*job, turn, vocab); }});
  }
  strands_.post(std::move(all));
}

}  // namespace refrain::worker
