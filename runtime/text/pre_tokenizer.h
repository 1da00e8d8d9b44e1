#pragma once
// The "pre_tokenizer" of tokenizer.json: cuts a text into the pieces that BPE encodes one by one.
// Immutable after load and shared by threads; each encode call brings its own scratch.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/text/regex.h"

namespace refrain::text {

class JsonView;

enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

struct SplitStage {
  Regex pattern;
  SplitBehavior behavior;
  bool invert;
};
// Cuts at characters of one class.
enum class CharClass : uint8_t { kNumeric, kPunctuation, kWhiteSpace };
struct CharStage {
  CharClass char_class;
  SplitBehavior behavior;
};
struct ByteLevelStage {
  bool add_prefix_space;
  bool map_bytes;  // write bytes in the byte alphabet; false where it is the last stage, whose
                   // pieces stay raw bytes (BpeModel's raw_bytes)
};
struct MetaspaceStage {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever } prepend;
  std::string replacement;
  Regex boundary;
  bool split;
};
using PreTokenizerStage = std::variant<SplitStage, CharStage, ByteLevelStage, MetaspaceStage>;

struct Piece {
  std::string_view text;
  bool at_start;  // begins where the whole input begins
};

struct PreTokenizerScratch {
  RegexScratch regex;
  struct Level {
    std::string text;
    std::vector<std::pair<size_t, size_t>> ranges;
  };
  std::deque<Level> levels;  // one a stage; a stage's buffers live while the later ones run
};

class PreTokenizer {
 public:
  using Sink = std::function<Status(std::string_view)>;

  // `json`: the "pre_tokenizer" object.
  static Result<PreTokenizer> load(const JsonView& json);

  // True if pieces are raw bytes for a vocabulary in the byte alphabet.
  bool raw_bytes() const { return raw_bytes_; }
  Status run(Piece piece, PreTokenizerScratch& scratch, const Sink& sink) const;

 private:
  Status add(const JsonView& json);
  Status add_split(const JsonView& json);
  Status add_byte_level(const JsonView& json);
  Status add_metaspace(const JsonView& json);
  Status run_stage(size_t index, Piece piece, PreTokenizerScratch& scratch, const Sink& sink) const;

  std::vector<PreTokenizerStage> stages_;
  bool raw_bytes_ = false;
};

}  // namespace refrain::text
