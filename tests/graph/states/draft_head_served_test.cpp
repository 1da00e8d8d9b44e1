// CG-40: a model and its draft head, served: tokens are those without speculation, whatever the
// mode, the ranks and the room for blocks. What the head keeps of a request is right after every
// chunk, preemption and hit, which how many of its drafts are right tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/graph/states/requests.h"
#include "tests/graph/tiny_head.h"

namespace refrain::tests::draft_head_served {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int32_t kDrafts = 3;

const TinyModel& model() {
  static const TinyModel tiny({.layers = 6});
  return tiny;
}

ServedOptions options_of(const TinyHead* head) {
  ServedOptions options;
  options.config.max_num_batched_tokens = 24;
  if (head == nullptr) return options;
  options.config.num_speculative_tokens = kDrafts;
  options.config.draft_model = true;
  options.config.draft_head = head->shape().kind;
  options.draft = head->directory();
  return options;
}

const Answers& expected() {
  static const Answers answers = [] {
    Served plain(model().directory(), options_of(nullptr));
    return serve_all(plain);
  }();
  return answers;
}

Tokens long_prompt() { return prompt(33, 9); }
constexpr int kLong = 40;

// Its vocabulary is a few tokens of an answer, so that drafts are right now and then.
const TinyHead& eagle3() {
  static const TinyHead head([] {
    TinyHeadShape shape{.kind = ipc::DraftHead::kEagle3, .seed = 3};
    Served plain(model().directory(), options_of(nullptr));
    plain.add(1, long_prompt(), kLong);
    plain.run();
    const Tokens& answer = plain.outcomes[1].tokens;
    if (answer.size() != kLong) throw std::runtime_error("the plain run gave no whole answer");
    const std::set<int> targets(answer.begin() + 2, answer.begin() + 6);
    shape.targets.assign(targets.begin(), targets.end());
    return shape;
  }());
  return head;
}
const TinyHead& eagle() {
  static const TinyHead head({.kind = ipc::DraftHead::kEagle});
  return head;
}

class EveryHeadMode : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(EveryHeadMode, CG40TokensAreThoseWithoutSpeculation) {
  const auto& [mode, ranks] = GetParam();
  if (ranks > 1 && ServedOptions{}.device != "host") GTEST_SKIP() << "a process a GPU";
  for (const TinyHead* head : {&eagle(), &eagle3()}) {
    ServedOptions options = options_of(head);
    options.config.cudagraph_mode = mode;
    options.config.tensor_parallel_size = ranks;
    Served served(model().directory(), options);
    EXPECT_EQ(serve_all(served), expected());
    EXPECT_GT(served.scheduler->stats().drafts.tokens, 50u);
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + "_tp" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Modes, EveryHeadMode, every_mode_and_ranks(), name_of);

class EveryHead : public ::testing::TestWithParam<const TinyHead& (*)()> {};

TEST_P(EveryHead, CG40PreemptedRequestsGoOn) {
  ServedOptions options = options_of(&GetParam()());
  options.num_blocks = {30, 30};  // for one request of 96 tokens
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.scheduler->stats().preemptions, 0u);
}

TEST_P(EveryHead, CG41AuditedStepsAgree) {
  ServedOptions options = options_of(&GetParam()());
  options.config.audit = true;
  options.audit_rate = 0.5;
  Served served(model().directory(), options);
  EXPECT_EQ(serve_all(served), expected());
  EXPECT_GT(served.audited, 10);
}

struct Counted {
  Tokens tokens;
  int32_t cached = 0;
  DraftCounts drafts;
};

DraftCounts since(const DraftCounts& now, const DraftCounts& then) {
  DraftCounts counts = now;
  counts.rows -= then.rows;
  counts.tokens -= then.tokens;
  for (size_t i = 0; i < then.accepted.size(); ++i) counts.accepted[i] -= then.accepted[i];
  return counts;
}

Counted serve_one(Served& served, RequestId id, const Tokens& tokens) {
  const DraftCounts before = served.scheduler->stats().drafts;
  served.add(id, tokens, kLong);
  served.run();
  return {served.outcomes[id].tokens, served.outcomes[id].cached,
          since(served.scheduler->stats().drafts, before)};
}

void expect_same(const Counted& got, const Counted& wanted, const std::string& what) {
  EXPECT_EQ(got.tokens, wanted.tokens) << what;
  EXPECT_EQ(got.drafts.rows, wanted.drafts.rows) << what;
  EXPECT_EQ(got.drafts.accepted, wanted.drafts.accepted) << what;
}

// Chunks of any length, and hits: the same drafts are right.
TEST_P(EveryHead, CG40ChunksAndHitsDraftAlike) {
  ServedOptions options = options_of(&GetParam()());
  options.config.max_num_batched_tokens = 64;
  Served whole(model().directory(), options);
  options.config.max_num_batched_tokens = 7;
  options.config.max_num_seqs = 1;
  Served parts(model().directory(), options);
  RequestId id = 0;
  uint64_t right = 0;
  Tokens tokens = long_prompt();
  for (const int32_t cached : {0, 32, 32}) {
    options.config.max_num_batched_tokens = 64;
    Served fresh(model().directory(), options);
    const Counted wanted = serve_one(fresh, ++id, tokens);
    for (const uint64_t count : wanted.drafts.accepted) right += count;
    const Counted got = serve_one(whole, id, tokens);
    EXPECT_EQ(got.cached, cached);
    expect_same(got, wanted, "hit of " + std::to_string(cached));
    expect_same(serve_one(parts, id, tokens), wanted, "chunks");
    tokens.push_back(static_cast<TokenId>(100 + id));
  }
  if (&GetParam()() == &eagle3()) {
    EXPECT_GT(right, 0u) << "nothing was compared";
  }
}

// A head keeps the token after a block's last one in the block: with another one there is no hit.
TEST_P(EveryHead, CG40ABlockIsKnownByTheTokenAfterItToo) {
  Served served(model().directory(), options_of(&GetParam()()));
  Tokens tokens = prompt(33, 2);
  serve_one(served, 1, tokens);
  tokens[32] = tokens[32] + 1;
  EXPECT_EQ(serve_one(served, 2, tokens).cached, 28);
  EXPECT_EQ(serve_one(served, 3, tokens).cached, 32);
  tokens[0] = tokens[0] + 1;
  EXPECT_EQ(serve_one(served, 4, tokens).cached, 0);
}

std::string head_name(const ::testing::TestParamInfo<const TinyHead& (*)()>& info) {
  return info.index == 0 ? "eagle" : "eagle3";
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryHead, ::testing::Values(&eagle, &eagle3), head_name);

}  // namespace
}  // namespace refrain::tests::draft_head_served
