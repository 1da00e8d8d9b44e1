#pragma once
// A compiled regular expression (PCRE2, JIT, Unicode). Immutable after compile and shared by
// threads; each thread brings its own RegexScratch, which serves any number of expressions.

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace refrain::text {

class RegexScratch {
 public:
  // How many bytes normalizing may add to what it is given.
  static constexpr size_t kGrowth = size_t{64} << 10;
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;

  const std::atomic<bool>* stop = nullptr;  // set: the next find() fails with kUnavailable
  size_t growth_left = kGrowth;             // of the text in hand

 private:
  friend class Regex;
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

class Regex {
 public:
  struct Match {
    size_t begin = 0, end = 0;
  };

  // `pattern` in tokenizer.json's dialect. The error names the construct at fault.
  static Result<Regex> compile(std::string_view pattern);
  // Matches exactly `text`.
  static Result<Regex> literal(std::string_view text);

  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The first match at or after `from`; false when there is none. `text` must be valid UTF-8 and
  // `from` a character boundary. Fails when the match limit is reached.
  Result<bool> find(std::string_view text, size_t from, RegexScratch& scratch, Match& match) const;

 private:
  Regex();
  static Result<Regex> compile_pcre2(const std::string& pattern);

  struct Code;
  std::unique_ptr<Code> code_;
  std::string pattern_;
};

}  // namespace refrain::text
