#pragma once
// Which tokens the slots' grammars and bad words allow next. Every rank gives its own the same
// tokens, so that all of them sample alike. Masks are made by threads of their own, a slot's always
// by the same one and in the order in which they are asked for, while the steps that sample by them
// run: sampling waits for its mask alone (kernels::GrammarMaskInputs). A mask takes 10 us as a rule
// and some milliseconds where text is bounded: several threads keep one row's from holding up the
// others. Grammars are compiled beside them. Device thread, as long as the runner; what masks are
// written to outlives it.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/grammar/grammar.h"
#include "worker/runner/bad_words.h"

namespace refrain::worker {

class GrammarMasks {
 public:
  // Follows the answer of one request; outlives its slot while steps of it are in flight.
  struct Follower {
    std::future<std::optional<GrammarMatcher>> compiling;
    std::optional<GrammarMatcher> matcher;  // none: no grammar after all, or the tokens left it
    bool has_grammar = false;
    size_t lane = 0;  // whose thread makes its masks
    BadWords bad_words;
  };
  // Tokens that the request has sampled, in order.
  struct Taken {
    std::shared_ptr<Follower> follower;
    std::vector<TokenId> tokens;
  };
  // A mask to be made. Bit t % 32 of word t / 32; none is set where there is no matcher: the row
  // then ends its own request.
  struct Row {
    std::shared_ptr<Follower> follower;
    std::vector<uint32_t> bounds;  // what the row's tokens may be besides; empty: all
    bool may_end = false;      // an answer that is complete ends although the bounds forbid its end
    uint32_t* mask = nullptr;  // [ceil(vocab_size / 32)]
    uint32_t* ready = nullptr;
  };

  GrammarMasks(std::filesystem::path model_directory, int64_t vocab_size,
               std::vector<TokenId> end_tokens, int32_t num_slots, int num_threads);
  ~GrammarMasks();  // waits for what is being compiled

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

 private:
  struct Work {
    std::vector<Taken> taken = {};
    uint32_t turn = 0;
    std::vector<Row> rows = {};
  };
  struct Lane {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> work;
    bool stop = false;
    std::thread thread;  // since the first grammar
  };
  std::optional<GrammarMatcher> compile(const std::string& source,
                                        const std::vector<TokenId>& tokens);
  void run(Lane& lane);
  void fill(Row& row) const;

  std::filesystem::path model_directory_;
  int64_t vocab_size_;
  std::vector<TokenId> end_tokens_;
  std::mutex compiler_mutex_;
  std::unique_ptr<GrammarCompiler> compiler_;  // since the first grammar
  std::deque<std::future<void>> ahead_;
  std::vector<std::shared_ptr<Follower>> slots_;  // [S]
  std::vector<Lane> lanes_;
};

}  // namespace refrain::worker
