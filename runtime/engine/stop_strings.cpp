#include "runtime/engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace refrain {

StopStrings::StopStrings(std::vector<std::string> stops, bool include_in_output)
    : stops_(std::move(stops)), include_in_output_(include_in_output) {}

StopStrings::Found StopStrings::push(std::string_view text) {
  if (stops_.empty()) return {std::string(text), std::nullopt};
  held_.append(text);
  const std::string* match = nullptr;
  size_t start = 0;
  for (const std::string& stop : stops_) {
    const size_t from = passed_ < stop.size() ? 0 : passed_ - stop.size() + 1;
    const size_t at = held_.find(stop, from);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    const size_t best = match == nullptr ? std::string::npos : start + match->size();
    if (end < best || (end == best && at < start)) {
      match = &stop;
      start = at;
    }
  }
  if (match != nullptr) {
    held_.resize(include_in_output_ ? start + match->size() : start);
    passed_ = 0;
    return {std::exchange(held_, {}), *match};
  }
  return {take_certain(), std::nullopt};
}

std::string StopStrings::pass(std::string_view text) {
  if (stops_.empty()) return std::string(text);
  held_.append(text);
  passed_ = held_.size();
  return take_certain();
}

std::string StopStrings::take_certain() {
  const size_t certain = held_.size() - held_back();
  std::string text = held_.substr(0, certain);
  held_.erase(0, certain);
  passed_ -= std::min(passed_, certain);
  return text;
}

// The longest end of the held text that a stop string begins with.
size_t StopStrings::held_back() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    size_t length = std::min(held_.size(), stop.size() - 1);
    for (; length > longest; --length)
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) break;
    longest = std::max(longest, length);
  }
  return longest;
}

std::string StopStrings::flush() {
  passed_ = 0;
  return std::exchange(held_, {});
}

}  // namespace refrain
