#pragma once
// The "normalizer" of tokenizer.json: a chain of steps over a text. Immutable after load.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/text/regex.h"
#include "runtime/text/unicode/unicode.h"

namespace refrain::text {

class JsonView;

struct UnicodeForm {
  NormalForm form;
};
struct LowercaseStep {};
struct StripAccentsStep {};
struct StripStep {
  bool left, right;
};
struct PrependStep {
  std::string prefix;
};
struct ReplaceStep {
  Regex pattern;
  std::string content;
};
using NormalizerStep =
    std::variant<UnicodeForm, LowercaseStep, StripAccentsStep, StripStep, PrependStep, ReplaceStep>;

class Normalizer {
 public:
  // `json`: the "normalizer" object; absent means no steps.
  static Result<Normalizer> load(const JsonView& json);

  bool empty() const { return steps_.empty(); }
  // Fails when the text would grow by more than the scratch has left.
  Result<std::string> apply(std::string_view text, RegexScratch& scratch) const;

 private:
  Status add(const JsonView& json);
  std::vector<NormalizerStep> steps_;
};

// "pattern": {"String": s} or {"Regex": r}, of normalizers, pre-tokenizers and decoders alike.
Result<Regex> load_pattern(const JsonView& owner);

// Every match of `pattern` replaced; fails when that gives more than `max_bytes`.
Result<std::string> replace_all(const Regex& pattern, std::string_view text,
                                std::string_view content, size_t max_bytes, RegexScratch& scratch);

}  // namespace refrain::text
