#include "runtime/text/pre_tokenizer.h"

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

using Range = std::pair<size_t, size_t>;

// Collects the stretches that match and those between, in order, by a split behaviour.
class RangeBuilder {
 public:
  RangeBuilder(SplitBehavior behavior, std::vector<Range>& ranges)
      : behavior_(behavior), ranges_(ranges) {
    ranges_.clear();
  }

  void add(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) ranges_.emplace_back(begin, end);
        break;
      case SplitBehavior::kIsolated:
        ranges_.emplace_back(begin, end);
        break;
      case SplitBehavior::kContiguous:
        join_if(is_match == previous_, begin, end);
        break;
      case SplitBehavior::kMergedWithPrevious:
        join_if(is_match && !previous_, begin, end);
        break;
      case SplitBehavior::kMergedWithNext:
        // Read backwards, a match joins the stretch after it unless that is a match too.
        join_if(previous_ && !is_match, begin, end);
        break;
    }
    previous_ = is_match;
  }

 private:
  void join_if(bool join, size_t begin, size_t end) {
    if (join && !ranges_.empty()) {
      ranges_.back().second = end;
    } else {
      ranges_.emplace_back(begin, end);
    }
  }

  SplitBehavior behavior_;
  std::vector<Range>& ranges_;
  bool previous_ = false;
};

Status split_ranges(const Regex& pattern, bool invert, SplitBehavior behavior,
                    std::string_view text, RegexScratch& scratch, std::vector<Range>& ranges) {
  RangeBuilder builder(behavior, ranges);
  Regex::Match match;
  size_t done = 0;  // end of the last match
  size_t at = 0;
  bool matched_before = false;
  while (at <= text.size()) {
    REFRAIN_ASSIGN_OR_RETURN(const bool found, pattern.find(text, at, scratch, match));
    if (!found) break;
    const bool empty = match.begin == match.end;
    if (empty && matched_before && match.begin == done) {  // never right behind another match
      if (at >= text.size()) break;
      at += read_utf8(text, at).length;
      continue;
    }
    if (match.begin > done) builder.add(done, match.begin, invert);
    builder.add(match.begin, match.end, !invert);
    done = at = match.end;
    matched_before = true;
  }
  if (done < text.size()) builder.add(done, text.size(), invert);
  return {};
}

bool in_class(char32_t c, CharClass char_class) {
  switch (char_class) {
    case CharClass::kNumeric:
      return is_numeric(c);
    case CharClass::kPunctuation:
      return is_punctuation(c);
    case CharClass::kWhiteSpace:
      return is_white_space(c);
  }
  return false;
}

// Every character of the class is a match of its own.
void char_ranges(const CharStage& stage, std::string_view text, std::vector<Range>& ranges) {
  RangeBuilder builder(stage.behavior, ranges);
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    if (in_class(unit.code_point, stage.char_class)) {
      if (i > done) builder.add(done, i, false);
      builder.add(i, i + unit.length, true);
      done = i + unit.length;
    }
    i += unit.length;
  }
  if (done < text.size()) builder.add(done, text.size(), false);
}

void replace_spaces(std::string_view text, std::string_view replacement, std::string& out) {
  for (const char c : text) {
    if (c == ' ') {
      out.append(replacement);
    } else {
      out.push_back(c);
    }
  }
}

// What one stage makes of a piece: the text (perhaps rewritten into level.text) and its ranges.
struct StageRun {
  Piece piece;
  PreTokenizerScratch::Level& level;
  RegexScratch& regex;

  void keep_whole() { level.ranges.assign(1, {0, piece.text.size()}); }

  Status operator()(const SplitStage& stage) {
    return split_ranges(stage.pattern, stage.invert, stage.behavior, piece.text, regex,
                        level.ranges);
  }
  Status operator()(const CharStage& stage) {
    char_ranges(stage, piece.text, level.ranges);
    return {};
  }
  Status operator()(const ByteLevelStage& stage) {
    if (stage.map_bytes) {
      level.text = bytes_to_chars(piece.text);
      piece.text = level.text;
    } else if (stage.add_prefix_space && !piece.text.starts_with(' ')) {
      level.text.assign(1, ' ').append(piece.text);
      piece.text = level.text;
    }
    keep_whole();
    return {};
  }
  Status operator()(const MetaspaceStage& stage) {
    using Prepend = MetaspaceStage::Prepend;
    const bool starts = piece.text.starts_with(' ') || piece.text.starts_with(stage.replacement);
    const bool prepend = !starts && (stage.prepend == Prepend::kAlways ||
                                     (stage.prepend == Prepend::kFirst && piece.at_start));
    level.text.clear();
    if (prepend) level.text = stage.replacement;
    replace_spaces(piece.text, stage.replacement, level.text);
    piece.text = level.text;
    if (stage.split)
      return split_ranges(stage.boundary, false, SplitBehavior::kMergedWithNext, piece.text, regex,
                          level.ranges);
    keep_whole();
    return {};
  }
};

}  // namespace

Status PreTokenizer::run(Piece piece, PreTokenizerScratch& scratch, const Sink& sink) const {
  while (scratch.levels.size() < stages_.size()) scratch.levels.emplace_back();
  return run_stage(0, piece, scratch, sink);
}

Status PreTokenizer::run_stage(size_t index, Piece piece, PreTokenizerScratch& scratch,
                               const Sink& sink) const {
  if (piece.text.empty()) return {};
  if (index == stages_.size()) return sink(piece.text);
  StageRun stage{piece, scratch.levels[index], scratch.regex};
  REFRAIN_RETURN_IF_ERROR(std::visit(stage, stages_[index]));
  for (const auto& [begin, end] : stage.level.ranges) {
    const Piece part{stage.piece.text.substr(begin, end - begin), piece.at_start && begin == 0};
    REFRAIN_RETURN_IF_ERROR(run_stage(index + 1, part, scratch, sink));
  }
  return {};
}

}  // namespace refrain::text
