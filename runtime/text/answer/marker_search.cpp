#include "runtime/text/answer/marker_search.h"

#include <algorithm>
#include <utility>

namespace refrain::text {

MarkerSearch::MarkerSearch(std::vector<std::string> markers) : markers_(std::move(markers)) {
  for (const std::string& marker : markers_) firsts_ += marker.front();
}

bool MarkerSearch::is_beginning(std::string_view text) const {
  return std::ranges::any_of(markers_,
                             [text](std::string_view marker) { return marker.starts_with(text); });
}

std::optional<size_t> MarkerSearch::next(std::string_view& text, std::string& before) {
  while (!text.empty()) {
    if (held_.empty()) {
      const size_t plain = std::min(text.find_first_of(firsts_), text.size());
      before += text.substr(0, plain);
      text.remove_prefix(plain);
      if (text.empty()) break;
    }
    held_ += text.front();
    text.remove_prefix(1);
    while (!held_.empty() && !is_beginning(held_)) {
      before += held_.front();
      held_.erase(0, 1);
    }
    const auto found = std::ranges::find(markers_, held_);
    if (found == markers_.end()) continue;
    held_.clear();
    return static_cast<size_t>(found - markers_.begin());
  }
  return std::nullopt;
}

ExpectedWord::Step ExpectedWord::push(char c) {
  if (letters_ == 0 && is_space(c)) {
    taken_ += c;
    return Step::kMore;
  }
  const std::string_view so_far = std::string_view(taken_).substr(taken_.size() - letters_);
  bool may_match = false;
  for (size_t i = 0; i < words_.size(); ++i) {
    const std::string_view word = words_[i];
    if (word.size() <= letters_ || !word.starts_with(so_far) || word[letters_] != c) continue;
    may_match = true;
    if (word.size() > letters_ + 1) continue;
    which_ = i;
    taken_ += c;
    ++letters_;
    return Step::kMatch;
  }
  if (!may_match) return Step::kNo;
  taken_ += c;
  ++letters_;
  return Step::kMore;
}

}  // namespace refrain::text
