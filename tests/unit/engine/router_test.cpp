// Which group takes a request: least work and prefix affinity (frame.md 5).

#include "runtime/engine/router.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace refrain {
namespace {

constexpr int32_t kBlock = 4;

std::vector<TokenId> prompt(TokenId first, size_t length) {
  std::vector<TokenId> tokens(length);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Router open_router(int32_t groups) {
  Router router(std::vector<ipc::GroupRole>(static_cast<size_t>(groups)), kBlock);
  for (int32_t group = 0; group < groups; ++group) router.open(group);
  return router;
}

TEST(Router, GivesNothingToAGroupThatIsClosed) {
  Router router({ipc::GroupRole::kBoth, ipc::GroupRole::kBoth}, kBlock);
  EXPECT_FALSE(router.any_open());
  EXPECT_EQ(router.place(1, prompt(0, 8), {}, 16), std::nullopt);
  router.open(1);
  EXPECT_EQ(router.place(2, prompt(0, 8), {}, 16), 1);
  router.close(1);
  EXPECT_EQ(router.place(3, prompt(0, 8), {}, 16), std::nullopt);
}

TEST(Router, OneGroupTakesAllWithoutAnAccount) {
  Router router = open_router(1);
  EXPECT_EQ(router.place(1, prompt(0, 8), {}, 16), 0);
  EXPECT_EQ(router.place(1, prompt(0, 8), {}, 16), 0);
  EXPECT_EQ(router.work(0), 0);
}

TEST(Router, TheGroupWithTheLeastWorkTakesTheNext) {
  Router router = open_router(2);
  EXPECT_EQ(router.place(1, prompt(0, 40), {}, 16), 0);
  EXPECT_EQ(router.place(2, prompt(100, 8), {}, 16), 1);
  EXPECT_EQ(router.place(3, prompt(200, 8), {}, 16), 1);  // 24 tokens against 56
  EXPECT_EQ(router.place(4, prompt(300, 24), {}, 16), 1);
  EXPECT_EQ(router.place(5, prompt(400, 4), {}, 16), 0);
  router.gone(2);
  router.gone(3);
  router.gone(4);
  EXPECT_EQ(router.work(1), 0);
  EXPECT_EQ(router.place(6, prompt(500, 4), {}, 16), 1);
}

TEST(Router, OfEqualGroupsTheOneThatWaitedLongest) {
  Router router = open_router(3);
  for (RequestId id = 1; id <= 6; ++id) {
    EXPECT_EQ(router.place(id, prompt(static_cast<TokenId>(100 * id), 4), {}, 1),
              static_cast<int32_t>((id - 1) % 3));
    router.gone(id);
  }
}

TEST(Router, ARequestGoesWhereItsBeginningWasComputed) {
  Router router = open_router(2);
  EXPECT_EQ(router.place(1, prompt(0, 32), {}, 1), 0);
  router.gone(1);
  EXPECT_EQ(router.place(2, prompt(100, 32), {}, 1), 1);
  router.gone(2);
  for (RequestId id = 3; id < 8; ++id) {
    EXPECT_EQ(router.place(id, prompt(0, 32), {}, 1), 0);
    router.gone(id);
  }
  EXPECT_EQ(router.place(8, prompt(0, 32), {"another salt", 0}, 1), 1);  // shares no blocks
}

TEST(Router, WorkOutweighsABeginningThatIsShorter) {
  Router router = open_router(2);
  EXPECT_EQ(router.place(1, prompt(0, 16), {}, 1), 0);
  EXPECT_EQ(router.place(2, prompt(0, 16), {}, 1), 1);  // 17 + 16 - 16 tokens against 16
}

TEST(Router, AGroupThatClosedHasForgotten) {
  Router router = open_router(2);
  EXPECT_EQ(router.place(1, prompt(0, 32), {}, 1), 0);
  router.gone(1);
  router.close(0);
  router.open(0);
  EXPECT_EQ(router.place(2, prompt(0, 32), {}, 1), 1);
}

// While its prompt runs, the group that will take the answer has it among its work.
TEST(Router, AnAnswerGoesWhereItWasPromised) {
  using enum ipc::GroupRole;
  Router router({kPrefill, kDecode, kDecode}, kBlock);
  EXPECT_EQ(router.promise(1, 16), std::nullopt);
  for (int32_t group = 0; group < 3; ++group) router.open(group);
  EXPECT_EQ(router.place(1, prompt(0, 8), {}, 16, Router::Part::kPrompt), 0);
  EXPECT_EQ(router.promise(1, 16), 1);
  EXPECT_EQ(router.promise(2, 16), 2) << "the other one has less work now";
  EXPECT_EQ(router.take_promise(2), 2);
  EXPECT_EQ(router.take_promise(2), std::nullopt);
  EXPECT_EQ(router.work(2), 0);
  router.gone(1);
  EXPECT_EQ(router.place(1, prompt(0, 9), {}, 16, Router::Part::kAnswer), 1);
  EXPECT_EQ(router.promised(1), std::nullopt);
  EXPECT_EQ(router.promise(3, 16), 2);
  router.close(2);
  EXPECT_EQ(router.place(3, prompt(0, 9), {}, 16, Router::Part::kAnswer), 1) << "it is gone";
  router.gone(1);
  router.gone(3);
  for (int32_t group = 0; group < 3; ++group) EXPECT_EQ(router.work(group), 0);
}

// Of new beginnings: whatever came and went, the least work among the groups that may take the
// part, and of those the one that took none for longest.
RC_GTEST_PROP(Router, TheLeastOfManyGroupsIsFound, ()) {
  using enum ipc::GroupRole;
  using Part = Router::Part;
  const auto roles = *rc::gen::container<std::vector<ipc::GroupRole>>(
      12, rc::gen::element(kBoth, kPrefill, kDecode));
  Router router(roles, kBlock);
  std::vector<RequestId> placed;
  std::vector<RequestId> taken(roles.size(), 0);
  for (RequestId id = 1; id <= 150; ++id) {
    const auto group = *rc::gen::inRange<int32_t>(0, 12);
    if (*rc::gen::inRange(0, 4) == 0)
      router.is_open(group) ? router.close(group) : router.open(group);
    if (!placed.empty() && *rc::gen::inRange(0, 3) == 0) {
      std::swap(placed[*rc::gen::inRange<size_t>(0, placed.size())], placed.back());
      router.gone(placed.back());
      placed.pop_back();
    }
    const Part part = *rc::gen::element(Part::kAll, Part::kPrompt, Part::kAnswer);
    const auto open = [&](ipc::GroupRole role) {
      for (int32_t at = 0; at < 12; ++at)
        if (router.is_open(at) && router.role(at) == role) return true;
      return false;
    };
    const auto may = [&](int32_t at) {
      const ipc::GroupRole role = router.role(at);
      if (!router.is_open(at)) return false;
      if (part == Part::kAnswer || role == kBoth)
        return (part == Part::kAnswer) == (role == kDecode);
      const bool wanted = (part == Part::kPrompt) == (role == kPrefill);
      return wanted || !(open(kBoth) || open(role == kPrefill ? kDecode : kPrefill));
    };
    std::optional<int32_t> least;
    for (int32_t at = 0; at < 12; ++at) {
      const auto rank = [&](int32_t of) {
        return std::pair(router.work(of), taken[static_cast<size_t>(of)]);
      };
      if (may(at) && (!least || rank(at) < rank(*least))) least = at;
    }
    const auto length = *rc::gen::inRange<size_t>(1, 40);
    const auto to = router.place(id, prompt(static_cast<TokenId>(100 * id), length), {}, 16, part);
    RC_ASSERT(to == least);
    if (!to) continue;
    placed.push_back(id);
    taken[static_cast<size_t>(*to)] = id;
  }
  for (const RequestId id : placed) router.gone(id);
  for (int32_t at = 0; at < 12; ++at) RC_ASSERT(router.work(at) == 0);
}

// Work is what is placed and not gone; groups differ by no more than one request's.
RC_GTEST_PROP(Router, SharesWorkEvenly, ()) {
  const auto groups = *rc::gen::inRange<int32_t>(2, 6);
  Router router = open_router(groups);
  std::vector<RequestId> there;
  for (RequestId id = 1; id < 200; ++id) {
    const auto length = *rc::gen::inRange<size_t>(1, 40);
    RC_ASSERT(router.place(id, prompt(static_cast<TokenId>(1000 * id), length), {}, 1));
    there.push_back(id);
  }
  int64_t least = router.work(0), most = router.work(0);
  for (int32_t group = 1; group < groups; ++group) {
    least = std::min(least, router.work(group));
    most = std::max(most, router.work(group));
  }
  RC_ASSERT(most - least <= 41);
  for (const RequestId id : there) router.gone(id);
  for (int32_t group = 0; group < groups; ++group) RC_ASSERT(router.work(group) == 0);
}

}  // namespace
}  // namespace refrain
