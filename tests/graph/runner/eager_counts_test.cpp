// What attention is told of a batch: launches made for one step know its real counts, recorded ones
// the key's. Rows that the former do not write reach no live row (CG-27, CG-28, CG-36).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

struct Seen {
  int32_t tokens = 0, reqs = 0, uniform = 0;
  bool exact = false;  // the counts are those of the batch
  bool operator==(const Seen&) const = default;
};
void PrintTo(const Seen& seen, std::ostream* out) {
  *out << seen.tokens << " tokens, " << seen.reqs << " requests, uniform " << seen.uniform
       << (seen.exact ? ", exact" : "");
}

// Attention of the session's device, which notes what it is launched with.
class Spy {
 public:
  explicit Spy(Session& session) : table_(*session.runner().hosted().context.kernels) {
    inner = table_.attention;
    table_.attention = [](kernels::StreamRef stream, const kernels::AttentionArgs& args) {
      seen.push_back({args.tokens.padded, args.reqs.padded, args.uniform_query_len,
                      args.tokens.live == nullptr && args.reqs.live == nullptr});
      inner(stream, args);
    };
    session.runner().hosted().context.kernels = &table_;
  }
  // Of the launches since last asked: all of a step's layers are alike.
  static Seen take() {
    EXPECT_FALSE(seen.empty());
    const Seen first = seen.empty() ? Seen{} : seen.front();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), first), std::ssize(seen));
    seen.clear();
    return first;
  }

 private:
  inline static kernels::Kernel<kernels::AttentionArgs> inner;
  inline static std::vector<Seen> seen;
  kernels::KernelTable table_;
};

TEST(EagerCounts, CG36AttentionOfAnEagerPieceTakesTheBatchsOwnCounts) {
  const auto session = started(with_mode("PIECEWISE"));
  Spy spy(*session);
  EXPECT_EQ(session->run({{0, prompt(5, 0), 0}, {1, prompt(6, 1), 0}}).key_tokens, 16);
  EXPECT_EQ(Spy::take(), (Seen{11, 2, 0, true}));
  const TokenId last = kTokenOnDevice;
  session->run({{2, prompt(3, 2), 0}, {3, prompt(2, 3), 0}});
  EXPECT_EQ(Spy::take(), (Seen{5, 2, 0, true}));
  EXPECT_EQ(session->run({{0, {last}, 5}, {1, {last}, 6}, {2, {last}, 3}}).key_tokens, 4);
  EXPECT_EQ(Spy::take(), (Seen{3, 3, 1, true}));
}

TEST(EagerCounts, CG36AttentionOfAStepWithoutGraphsTakesItsOwnCounts) {
  const auto session = started(with_mode("NONE"));
  Spy spy(*session);
  session->run({{0, prompt(7, 0), 0}, {1, prompt(2, 1), 0}});
  EXPECT_EQ(Spy::take(), (Seen{9, 2, 0, true}));
}

TEST(EagerCounts, CG28AttentionOfAnEagerRunAtAKeyTakesWhatItsGraphTakes) {
  const auto full = started(with_mode("FULL"));
  full->runner().run_eager_at_key(true);
  Spy spy(*full);
  full->run({{0, prompt(7, 0), 0}});
  EXPECT_EQ(Spy::take(), (Seen{8, 6, 0, false}));
  const auto piecewise = started(with_mode("PIECEWISE"));
  piecewise->runner().run_eager_at_key(true);
  Spy other(*piecewise);
  piecewise->run({{0, prompt(5, 0), 0}});
  EXPECT_EQ(Spy::take(), (Seen{5, 1, 0, true}));
}

}  // namespace
}  // namespace refrain::tests
