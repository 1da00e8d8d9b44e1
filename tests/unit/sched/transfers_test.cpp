// Two schedulers, one for prompts and one for answers, and blocks that move between their devices
// leases, generations, COMMIT, quarantine. The mock devices' tokens follow from what lies
// in their caches, so that a block read or written at a wrong time gives a wrong token.

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/sched/pair.h"
#include "tests/unit/sched/parts.h"

namespace refrain::testing {
namespace {

using std::chrono::seconds;

TEST(Generations, GrowWhenABlockIsGivenOutAndNotWhenItIsShared) {
  BlockManager blocks(3);
  auto first = *blocks.allocate();
  const BlockId id = first.id();
  const uint64_t generation = blocks.generation(id);
  blocks.set_cached(id);
  first.reset();
  EXPECT_EQ(blocks.generation(id), generation);
  auto shared = blocks.share(id);
  EXPECT_EQ(blocks.generation(id), generation) << "its contents came back to life";
  shared.reset();
  auto other = *blocks.allocate();
  auto again = *blocks.allocate();
  EXPECT_EQ(again.id(), id);
  EXPECT_EQ(blocks.generation(id), generation + 1);
}

// Wherever the leases lie in memory: one seed gives the same run in every process.
TEST(Leases, ThatRunOutGiveTheirBlocksBackInTheOrderOfTheirGrants_R20) {
  SchedulerOptions options = small_options();
  options.groups = full_attention(5);
  options.watermark = 0;
  options.max_num_seqs = 5;  // none of the requests gives its slot back
  Parts parts(options);
  BlockLeases leases(parts.resources.pools());
  std::vector<BlockId> blocks;
  const auto grant = [&](RequestId id) {
    Sequence& sequence = parts.add_running(id, 4);
    blocks.push_back(sequence.held[0].blocks[0].id());
    return leases.grant(parts.resources.pools().detach(sequence), 4, TimePoint{});
  };
  auto first = grant(1);
  const auto second = grant(2), third = grant(3);
  first.reset();
  blocks.erase(blocks.begin());
  const auto fourth = grant(4);  // where the first one lay, as malloc has it
  EXPECT_EQ(leases.expire(TimePoint{} + seconds(1)), 3u);
  const Sequence& next = parts.add_running(5, 16);
  std::vector<BlockId> taken;
  for (const BlockRef& block : next.held[0].blocks) taken.push_back(block.id());
  std::erase_if(taken, [&](BlockId id) { return std::ranges::count(blocks, id) == 0; });
  std::ranges::reverse(blocks);  // what was freed last is taken first
  EXPECT_EQ(taken, blocks);
}

TEST(Transfers, ARequestLeavesWithItsFirstTokenAndGoesOnWithoutAPrompt) {
  Pair pair;
  pair.add(1, prompt_of(11), 8);
  pair.run();
  EXPECT_EQ(pair.outputs[1].size(), 1u);
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 1u);
  EXPECT_EQ(pair.prefill.scheduler.num_unfinished(), 0u);
  ASSERT_EQ(pair.pulls.size(), 1u);
  EXPECT_EQ(pair.pulls[0].blocks[0].from.size(), 3u);
  EXPECT_EQ(pair.decode.scheduler.stats().transfers.running, 1u);
  pair.finish_pulls();
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 0u) << "the lease ends with the COMMIT";
  pair.run();
  pair.expect_answers();
  pair.expect_all_free();
  EXPECT_EQ(pair.decode.scheduler.stats().transfers.done, 1u);
}

TEST(Transfers, PromptsOfEveryLengthAroundBlocksAndChunks) {
  for (size_t length = 1; length <= 40; ++length) {
    Pair pair;
    pair.add(1, prompt_of(length), 6);
    pair.complete();
    pair.expect_answers();
    pair.expect_all_free();
  }
}

TEST(Transfers, BlocksThatAreCachedOnBothSidesAreReadFromThere) {
  Pair pair;
  pair.add(1, prompt_of(17), 2);
  pair.complete();
  pair.add(2, prompt_of(17), 5);
  pair.run();
  ASSERT_EQ(pair.pulls.size(), 1u);
  EXPECT_EQ(pair.pulls[0].blocks[0].to.size(), 1u);
  pair.complete();
  pair.add(3, prompt_of(16), 5);  // its blocks are all there: nothing is pulled
  pair.run();
  EXPECT_TRUE(pair.pulls.empty());
  pair.expect_answers();
  pair.expect_all_free();
}

// What was read after the lease ran out, of a block that another request has meanwhile, is found at
// COMMIT. Without it the request would go on with the other's keys.
TEST(Transfers, ReadingAfterReassignmentIsFoundAtCommit_R28) {
  Pair pair(/*prefill_blocks=*/7);
  pair.add(1, prompt_of(11), 8);
  pair.run();
  ASSERT_EQ(pair.pulls.size(), 1u);
  const ipc::PullBlocks late = pair.pulls[0];
  pair.pulls.clear();
  pair.now += seconds(60);
  pair.prefill.scheduler.check_transfers(pair.now);  // the owner is first to wake up
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 0u);
  EXPECT_EQ(pair.prefill.scheduler.stats().leases_expired, 1u);
  pair.add(2, prompt_of(22, 500), 1);  // takes the same blocks
  pair.run();
  pair.copy(late);
  pair.report(late.id, true);
  EXPECT_EQ(pair.failed, 1) << "the COMMIT was valid";
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

// A lease that ran out while nobody took the blocks: what was read is good.
TEST(Transfers, AnExpiredLeaseWhoseBlocksNobodyTookIsGood) {
  Pair pair;
  pair.add(1, prompt_of(11), 8);
  pair.run();
  pair.now += seconds(60);
  pair.prefill.scheduler.check_transfers(pair.now);
  pair.finish_pulls();
  EXPECT_EQ(pair.failed, 0);
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

// The blocks of a transfer that was given up are nobody's until its writer has ended.
TEST(Transfers, ALateWriteReachesNobody_R28) {
  Pair pair(65, /*decode_blocks=*/9);
  pair.add(1, prompt_of(11), 8);
  pair.run();
  ASSERT_EQ(pair.pulls.size(), 1u);
  const ipc::PullBlocks late = pair.pulls[0];
  pair.pulls.clear();
  pair.now += seconds(5);
  pair.check();
  EXPECT_EQ(pair.cancels, std::vector<TransferId>{late.id});
  EXPECT_EQ(pair.decode.scheduler.stats().transfers.quarantined, 1u);
  EXPECT_EQ(pair.decode.scheduler.stats().blocks_free, 5);
  pair.add(2, prompt_of(9, 300), 6);
  pair.complete();
  EXPECT_EQ(pair.outputs[2].size(), 6u);
  pair.add(3, prompt_of(9, 700), 6);
  pair.run();
  pair.finish_pulls();
  pair.copy(late);  // the writer was slow
  pair.run();
  pair.report(late.id, true, "cancelled");
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

TEST(Transfers, ProgressRenewsDeadlineAndLease) {
  Pair pair;
  pair.add(1, prompt_of(11), 8);
  pair.run();
  ASSERT_EQ(pair.pulls.size(), 1u);
  for (int i = 1; i <= 10; ++i) {
    pair.now += seconds(3);
    pair.report(pair.pulls[0].id, false, "", i);
    pair.check();
  }
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 1u);
  EXPECT_EQ(pair.failed, 0);
  pair.now += seconds(5);
  pair.check();
  EXPECT_EQ(pair.failed, 1);
}

// A request that waits for the decode side's room keeps its lease.
TEST(Transfers, AFullDecodeSideMakesThemWait) {
  Pair pair(65, /*decode_blocks=*/10);
  for (RequestId id = 1; id <= 3; ++id)
    pair.add(id, prompt_of(17, static_cast<TokenId>(100 * id)), 16);
  pair.run();
  EXPECT_EQ(pair.pulls.size(), 1u);
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 3u);
  for (int i = 0; i < 30; ++i) {
    pair.now += seconds(1);
    pair.check();
    if (i % 2 == 0 && !pair.pulls.empty()) pair.report(pair.pulls[0].id, false, "", i + 2);
  }
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 3u);
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

TEST(Transfers, AllBlocksComeBackWhenASchedulerEnds) {
  Pair pair;
  pair.add(1, prompt_of(11), 8);
  pair.add(2, prompt_of(12, 300), 8);
  pair.run();
  auto left = pair.decode.scheduler.release_all();
  EXPECT_EQ(left.size(), 2u);
  EXPECT_EQ(pair.prefill.scheduler.stats().leases, 0u);
  pair.take_orders();
  EXPECT_EQ(pair.cancels.size(), 2u);
  for (const ipc::PullBlocks& pull : std::exchange(pair.pulls, {})) pair.report(pull.id, true);
  pair.expect_all_free();
}

TEST(Transfers, ALeaseOutlivesItsOwnerUnharmed) {
  auto prefill = std::make_unique<Pair>();
  prefill->add(1, prompt_of(11), 8);
  while (prefill->turn(prefill->prefill)) {
  }
  auto left = prefill->decode.scheduler.release_all();
  ASSERT_EQ(left.size(), 1u);
  prefill.reset();
  EXPECT_EQ(left[0]->source, nullptr);
}

// Anything in any order: requests of shared and own beginnings, cancels, pulls that are done late,
// fail, stall, write after they were given up; leases that run out before their reader looks.
class TransferSeeds : public ::testing::TestWithParam<uint64_t> {};

TEST_P(TransferSeeds, NobodyGetsTheTokensOfAnother_R28) {
  std::mt19937_64 random(GetParam());
  const auto below = [&](uint64_t n) { return random() % n; };
  const auto prefill_blocks = 13 + static_cast<int64_t>(below(20));
  const auto decode_blocks = 13 + static_cast<int64_t>(below(20));
  Pair pair(prefill_blocks, decode_blocks, 0, /*early=*/GetParam() % 2 == 0);
  std::vector<ipc::PullBlocks> cancelled;  // may write until they are reported as ended
  RequestId next = 1;
  for (int i = 0; i < 200; ++i) {
    switch (below(8)) {
      case 0:
      case 1:
        pair.add(next++, prompt_of(1 + below(30), static_cast<TokenId>(1 + 100 * below(4))),
                 static_cast<int64_t>(1 + below(16)));
        break;
      case 2:
        if (!pair.pulls.empty()) {
          const ipc::PullBlocks pull = pair.pulls[below(pair.pulls.size())];
          pair.copy(pull);
          if (below(2) == 0) break;  // written, and not told yet
          std::erase_if(pair.pulls, [&](const auto& each) { return each.id == pull.id; });
          pair.report(pull.id, true, below(4) == 0 ? "lost" : "");
        }
        break;
      case 3:
        pair.now += seconds(below(12));
        if (below(2) == 0) {
          pair.prefill.scheduler.check_transfers(pair.now);  // a reader that sleeps
        } else {
          pair.check();
        }
        break;
      case 4:
        if (next > 1 && below(3) == 0) {
          const RequestId id = 1 + below(next - 1);
          const bool at_prefill = pair.prefill.scheduler.cancel(id);
          const bool at_decode = pair.decode.scheduler.cancel(id);
          if (at_prefill || at_decode) pair.prompts.erase(id);
          pair.take_orders();
        }
        break;
      default:
        below(2) == 0 ? pair.turn(pair.prefill) : pair.turn(pair.decode);
    }
    for (const TransferId id : std::exchange(pair.cancels, {})) {
      const auto found = std::ranges::find(pair.pulls, id, &ipc::PullBlocks::id);
      if (found == pair.pulls.end()) continue;
      cancelled.push_back(*found);
      pair.pulls.erase(found);
    }
    if (!cancelled.empty() && below(3) == 0) {
      pair.copy(cancelled.front());
      if (below(2) == 0) {
        pair.report(cancelled.front().id, true, "cancelled");
        cancelled.erase(cancelled.begin());
      }
    }
  }
  for (const ipc::PullBlocks& pull : cancelled) pair.report(pull.id, true, "cancelled");
  for (int i = 0; i < 50; ++i) {
    pair.complete();
    for (const TransferId id : std::exchange(pair.cancels, {})) pair.report(id, true, "cancelled");
    pair.now += seconds(1);
    pair.check();
  }
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

INSTANTIATE_TEST_SUITE_P(Seeds, TransferSeeds, ::testing::Range(uint64_t{1}, uint64_t{201}));

}  // namespace
}  // namespace refrain::testing
