#pragma once
// The test model of states, and what plain loops answer to kRequests.

#include "tests/graph/states/hybrid_model.h"
#include "tests/graph/states/requests.h"

namespace refrain::tests {

inline Answers answers_of(const HybridModel& model) {
  Answers all;
  for (const Request& request : kRequests)
    all.push_back(model.answer(prompt(request.length, request.seed), request.count));
  return all;
}

namespace hybrid {

inline const HybridModel& model() {
  static const HybridModel hybrid;
  return hybrid;
}

inline const Answers& expected() {
  static const Answers answers = answers_of(model());
  return answers;
}

// Requests that begin as the ones before: with their blocks, those that the window sees, and the
// checkpoint of the recurrent state. Returns the next prompt.
inline std::vector<TokenId> expect_prefixes_found(Served& served) {
  auto tokens = prompt(41, 2);
  RequestId id = 0;
  for (const int32_t cached : {0, 40, 40}) {
    served.add(++id, tokens, 12);
    served.run();
    EXPECT_EQ(served.outcomes[id].cached, cached);
    EXPECT_EQ(served.outcomes[id].tokens, model().answer(tokens, 12));
    tokens.push_back(static_cast<TokenId>(100 + id));
  }
  return tokens;
}

}  // namespace hybrid
}  // namespace refrain::tests
