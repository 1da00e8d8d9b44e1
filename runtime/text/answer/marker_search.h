#pragma once
// Fixed words in text that comes in pieces. Both classes give the same however the text is cut, and
// look at each byte a bounded number of times. Owned by one answer's parser.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::text {

// Finds the next marker anywhere; what may be the beginning of one is held back.
class MarkerSearch {
 public:
  // None is the beginning of another.
  explicit MarkerSearch(std::vector<std::string> markers);

  // Takes from `text` up to and including the first marker and returns which; the text before it is
  // added to `before`. Nothing: all of `text` is taken.
  std::optional<size_t> next(std::string_view& text, std::string& before);
  std::string flush() { return std::exchange(held_, {}); }  // what was held back

  const std::string& marker(size_t i) const { return markers_[i]; }

 private:
  bool is_beginning(std::string_view text) const;

  std::vector<std::string> markers_;
  std::string firsts_;  // first bytes of the markers
  std::string held_;
};

// Reads white space and then one of some words.
class ExpectedWord {
 public:
  enum class Step : uint8_t { kMore, kMatch, kNo };

  void expect(std::vector<std::string_view> words) {
    words_ = std::move(words);
    taken_.clear();
    letters_ = 0;
  }
  // kNo: the byte is not taken.
  Step push(char c);
  size_t which() const { return which_; }              // of kMatch
  const std::string& taken() const { return taken_; }  // white space too

 private:
  std::vector<std::string_view> words_;
  std::string taken_;
  size_t letters_ = 0;  // of the word, at the end of taken_
  size_t which_ = 0;
};

constexpr bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
// Without the white space that begins and ends it.
constexpr std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace refrain::text
