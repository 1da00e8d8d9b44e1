#pragma once
// Splits an answer into reasoning, <think>…</think>, and the rest. What the prompt ends with says
// where the answer begins. Owned by one answer, on its thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/text/answer/marker_search.h"

namespace refrain::text {

enum class ThinkingStart : uint8_t {
  kInside,  // the prompt ends inside of <think>
  kClosed,  // it ends behind </think>: no reasoning
  kUnsaid,  // neither: the answer says
};
ThinkingStart thinking_start(std::string_view prompt);
// Where the prompt ends with an answer's beginning, which is to be continued.
ThinkingStart thinking_start_after(std::string_view begun);

class ReasoningSplitter {
 public:
  ReasoningSplitter(ThinkingStart start, bool unsaid_is_reasoning);

  struct Parts {
    std::string reasoning;
    std::string rest;
  };
  Parts push(std::string_view text);
  Parts finish();

 private:
  enum class State : uint8_t { kStart, kReasoning, kRest };
  bool unsaid_is_reasoning_;
  State state_;
  ExpectedWord begin_;
  MarkerSearch end_{{"</think>"}};
};

}  // namespace refrain::text
