#pragma once
// Which tokens the slots' grammars and bad words allow next. Every rank gives its own the same
// tokens, so that all of them sample alike. Masks are made by threads of their own, a slot's in the
// order in which they are asked for, while the steps that sample by them run: sampling waits for
// its mask alone (kernels::GrammarMaskInputs). A mask takes 25 us as a rule, and milliseconds where
// a grammar's rules repeat each other. Nobody can stop one that takes much longer: its request is
// given up, and the step goes on without it. Grammars are compiled beside them, and a slow one
// holds up no slot whose grammar is known. Device thread, as long as the runner; what masks are
// written to outlives it.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/grammar/grammar.h"
#include "worker/runner/bad_words.h"
#include "worker/runner/patient_strands.h"
#include "worker/runner/reasoning_gate.h"

namespace refrain::worker {

class GrammarMasks {
 public:
  // Follows the answer of one request; outlives its slot while steps of it are in flight.
  struct Follower {
    std::shared_ptr<PatientStrands::Strand> strand;  // has what follows
    bool has_grammar = false;
    std::shared_ptr<const text::Tokenizer> tokenizer;  // of the matcher
    std::unique_ptr<GrammarMatcher> matcher;  // null: no grammar after all, or the tokens left it
    ReasoningGate reasoning;
    BadWords bad_words;
    std::deque<TokenId> forced;  // how the tokenizer writes the text that comes next in any case
    double slow_seconds = 0;     // of a processor, beyond what masks usually take

    // What it allows could not be said in time: its request ends.
    bool given_up() const { return strand->given_up(); }
  };
  // Tokens that the request has sampled, in order.
  struct Taken {
    std::shared_ptr<Follower> follower;
    std::vector<TokenId> tokens;
  };
  // Masks to be made, of a row's first token and behind each draft. Bit t % 32 of word t / 32; none
  // is set where there is no matcher: the row then ends its own request.
  struct Row {
    std::shared_ptr<Follower> follower;
    std::vector<uint32_t> bounds = {};  // what the row's tokens may be besides; empty: all
    bool may_end = false;      // an answer that is complete ends although the bounds forbid its end
    int32_t num_logits = 1;    // of the row: a mask each, with drafts; else the first alone has one
    uint32_t* mask = nullptr;  // [num_logits, ceil(vocab_size / 32)]
    uint32_t* ready = nullptr;  // [num_logits]
    TokenId* drafts = nullptr;  // [num_logits - 1]; null: the row takes none
    uint32_t* drafts_ready = nullptr;
  };
  // Two of these are less than what a step may stand still (StepDeadline::kLeastStall).
  static constexpr Duration kPatience = std::chrono::milliseconds(700);
  // What the masks of one answer may cost beyond kUsualSeconds each: all steps wait for them.
  static constexpr double kUsualSeconds = 0.02, kMostSlowSeconds = 1;

  // How many grammars are compiled ahead at one time; others wait for their turn.
  static constexpr int kMostCompiledAhead = 2;

  GrammarMasks(std::filesystem::path model_directory, int64_t vocab_size,
               std::vector<TokenId> end_tokens, int32_t num_slots, int num_threads,
               Duration patience = kPatience);
  ~GrammarMasks();  // waits for what is being compiled; what waits for its turn is forgotten

  // Into the compiler's cache. Returns at once; `done` is called by another thread.
  void compile_ahead(std::string source, std::function<void()> done);
  // A request enters the slot; what the slot had before is forgotten.
  void set_up(const ipc::SlotSetup& setup);
  bool constrains(SlotId slot) const { return follower(slot) != nullptr; }
  // Null: the slot's request has neither.
  const std::shared_ptr<Follower>& follower(SlotId slot) const {
    return slots_[static_cast<size_t>(slot)];
  }
  // Takes the tokens, then makes the masks and sets their `ready` to `turn`. Returns at once.
  void post(std::vector<Taken> taken, uint32_t turn, std::vector<Row> rows);
  // As time does; for tests.
  void give_up_overdue(TimePoint now) { strands_.give_up_overdue(now); }

 private:
  struct Ahead {
    std::string source;
    std::function<void()> done;
  };

  void run_apart(std::function<void()> work);
  void compile_waiting();
  GrammarCompiler* compiler();
  std::unique_ptr<GrammarMatcher> compile(const std::string& source);
  void begin(Follower& follower, const ipc::SlotSetup& setup);

  std::filesystem::path model_directory_;
  int64_t vocab_size_;
  std::vector<TokenId> end_tokens_;
  std::mutex compiler_mutex_;  // while the two are made, for the first grammar
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<GrammarCompiler> compiler_;
  std::mutex ahead_mutex_;  // of the two below
  std::deque<Ahead> ahead_;
  int compiling_ahead_ = 0;
  std::vector<std::shared_ptr<Follower>> slots_;  // [S]
  PatientStrands strands_;
  std::vector<std::future<void>> apart_;
};

}  // namespace refrain::worker
