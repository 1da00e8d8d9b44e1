#pragma once
// What a client's grammar costs is known when it is compiled, and a compilation cannot be stopped
// from outside of it: so the first one of each grammar runs in a process of its own, forked by a
// helper that has the vocabulary, under limits of processor time, memory and wall time, and is
// tried there (grammar_trial.h). Only one that came out well goes to the workers, which compile it
// again.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/child_process.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace refrain {

struct GrammarLimits {
  int64_t cpu_seconds = 10;
  int64_t wall_seconds = 20;
  int64_t memory_bytes = int64_t{512} << 20;  // beyond what the helper has
};

struct GrammarHelperOptions {
  std::filesystem::path model_directory;
  int64_t vocab_size = 0;
  std::vector<TokenId> end_tokens;
  GrammarLimits limits = {};
};

// The helper: answers the socket until its other end closes. For a process of its own, with one
// thread; the arguments are those after kGrammarHelperWord.
inline constexpr const char* kGrammarHelperWord = "--grammar-helper";
int run_grammar_helper(const std::vector<std::string>& arguments);

// The coordinator's end. Starts the helper with the first grammar, and again when it has died. Any
// thread; check() blocks, one grammar at a time.
class GrammarHelper {
 public:
  // `program`: starts run_grammar_helper when its first argument is kGrammarHelperWord.
  GrammarHelper(std::string program, GrammarHelperOptions options)
      : program_(std::move(program)), options_(std::move(options)) {}
  ~GrammarHelper();
  GrammarHelper(const GrammarHelper&) = delete;
  GrammarHelper& operator=(const GrammarHelper&) = delete;

  // Whether it came out well lately: no need to wait for check().
  bool knows(const std::string& source);
  // kInvalidArgument says what is wrong with the grammar, or which limit it broke, which is
  // remembered unless the machine may have been too busy; kUnavailable what grammar_library() says,
  // or that the helper ended.
  Status check(const std::string& source);
  // It fails with `why` from now on: also where an answer has shown what check() did not find.
  void refuse(const std::string& source, const std::string& why);

 private:
  Status start();
  void stop();
  Status ask(const std::string& source);
  Status refused(const std::string& source);

  const std::string program_;
  const GrammarHelperOptions options_;
  std::mutex helper_mutex_;
  int socket_ = -1;
  std::optional<ChildProcess> process_;
  std::mutex known_mutex_;
  std::list<std::string> known_;                         // latest first
  std::deque<std::pair<std::string, std::string>> bad_;  // refused ones and why, latest last
  std::unordered_map<std::string_view, std::list<std::string>::iterator> known_at_;
};

}  // namespace refrain
