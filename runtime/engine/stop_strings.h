#pragma once
// Finds stop strings in text that comes in pieces, and holds back what may be the beginning of one,
// so that no part of a stop string is ever shown. The result does not depend on how the text is
// cut. Owned by one request's output.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

class StopStrings {
 public:
  StopStrings(std::vector<std::string> stops, bool include_in_output);

  struct Found {
    std::string text;                 // certain not to be part of a stop string
    std::optional<std::string> stop;  // the one that matched: the text ends here
  };
  // The match that ends first wins; of those, the longest.
  Found push(std::string_view text);
  // Text in which no stop string may end; what may be the beginning of one is held back.
  std::string pass(std::string_view text);
  std::string flush();  // what was held back, at the end of the text

 private:
  size_t held_back() const;
  std::string take_certain();

  std::vector<std::string> stops_;
  bool include_in_output_;
  std::string held_;
  size_t passed_ = 0;  // bytes of it where no stop string may end
};

}  // namespace refrain
