#pragma once
// Requests that models are served with here: prompts shorter and longer than window and chunk, and
// more of them than slots.

#include <string>
#include <tuple>

#include "tests/graph/states/served.h"

namespace refrain::tests {

inline std::vector<TokenId> prompt(int count, int seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (i * 31 + seed * 57) % 250);
  return tokens;
}

struct Request {
  int length, seed, count;
};
constexpr Request kRequests[] = {{5, 1, 30}, {40, 2, 20}, {17, 3, 24},
                                 {1, 4, 18}, {29, 5, 12}, {12, 6, 9}};
using Answers = std::vector<std::vector<TokenId>>;

inline void add_all(Served& served) {
  RequestId id = 0;
  for (const Request& request : kRequests)
    served.add(++id, prompt(request.length, request.seed), request.count);
}

// Cases of a test: every mode, on one and two ranks.
inline auto every_mode_and_ranks() {
#ifdef REFRAIN_TSAN  // the last replays the graphs of both; one rank does what two do, and
                     // less
  return ::testing::Combine(::testing::Values("NONE", "FULL_AND_PIECEWISE"), ::testing::Values(2));
#else
  return ::testing::Combine(
      ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
      ::testing::Values(1, 2));
#endif
}
inline std::string name_of_mode_and_ranks(
    const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
}

// What each has been given.
inline Answers answers_of(Served& served) {
  Answers answers;
  for (RequestId id = 1; id <= std::size(kRequests); ++id)
    answers.push_back(served.outcomes[id].tokens);
  return answers;
}

inline Answers serve_all(Served& served) {
  add_all(served);
  served.run();
  return answers_of(served);
}

}  // namespace refrain::tests
