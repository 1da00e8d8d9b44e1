#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

namespace refrain::worker::test {
namespace {

TEST(RankShare, SpreadsAsEvenlyAsItGoes) {
  EXPECT_EQ(rank_share(3, 0, 2).end, 2);
  EXPECT_EQ(rank_share(3, 1, 2).begin, 2);
  EXPECT_EQ(rank_share(3, 1, 2).end, 3);
}

RC_GTEST_PROP(RankShare, CoversEveryUnitOnceAndEvenly, ()) {
  const int size = *rc::gen::inRange(1, 17);
  const int64_t units = *rc::gen::inRange(0, 1000);
  int64_t at = 0;
  for (int rank = 0; rank < size; ++rank) {
    const UnitRange range = rank_share(units, rank, size);
    RC_ASSERT(range.begin == at);
    RC_ASSERT(range.end - range.begin == units / size + (rank < units % size ? 1 : 0));
    at = range.end;
  }
  RC_ASSERT(at == units);
}

// How often each element of each checkpoint tensor is held over all ranks, by tensor.
std::map<std::string, std::vector<int>> holdings(const Program& program, int size) {
  std::map<std::string, std::vector<int>> held;
  for (int rank = 0; rank < size; ++rank) {
    const auto sharded = shard(program, rank, size);
    RC_ASSERT(sharded.has_value());
    for (const Value& value : sharded->values)
      for (const WeightPart& part : value.parts) {
        auto& count = held[part.tensor];
        count.resize(static_cast<size_t>(part.tensor_rows * part.tensor_cols), 0);
        for (int64_t r = part.row_begin; r < part.row_end; ++r)
          for (int64_t c = part.col_begin; c < part.col_end; ++c)
            ++count[static_cast<size_t>(r * part.tensor_cols + c)];
      }
  }
  return held;
}

RC_GTEST_PROP(Shard, HoldsEveryWeightOnceOrOnEveryRank, ()) {
  const ModelConfig config = random_model();
  const int size = *rc::gen::inRange(1, most_ranks(config) + 1);
  const auto kv_heads = static_cast<int>(config.num_kv_heads);
  for (const auto& [tensor, counts] : holdings(fuse(build(config)), size)) {
    const bool norm = tensor.find("norm") != std::string::npos;
    const bool kv =
        tensor.find("k_proj") != std::string::npos || tensor.find("v_proj") != std::string::npos;
    const int least = kv ? std::max(1, size / kv_heads) : 1;
    const int most = kv ? std::max(1, (size + kv_heads - 1) / kv_heads) : 1;
    for (const int count : counts)
      norm ? RC_ASSERT(count == size) : RC_ASSERT(least <= count && count <= most);
  }
}

TEST(Shard, ThreeKvHeadsOnTwoRanksRunAsTwoAndOne) {
  const Program program = fuse(build(tiny_llama()));
  EXPECT_EQ(shard(program, 0, 2)->states[0].paged.parts[0].units, 2);
  EXPECT_EQ(shard(program, 1, 2)->states[0].paged.parts[1].units, 1);
}

TEST(Shard, RanksBeyondTheKvHeadsShareTheQueriesOfOne) {
  ModelConfig config = tiny_llama();
  config.num_kv_heads = 2;
  config.num_heads = 6;
  const Program program = fuse(build(config));
  const int64_t dim = config.head_dim;
  for (const auto& [rank, head, first, last] :
       {std::tuple{0, 0, 0, 2}, {1, 0, 2, 3}, {2, 1, 3, 5}, {3, 1, 5, 6}}) {
    const auto sharded = shard(program, rank, 4);
    const PagedPart& keys = sharded->states[0].paged.parts[0];
    EXPECT_EQ(keys.units, 1);
    EXPECT_EQ(keys.first_unit, head);
    for (const Value& value : sharded->values) {
      for (const WeightPart& part : value.parts) {
        if (part.tensor.find("q_proj.weight") == std::string::npos) continue;
        EXPECT_EQ(part.row_begin, first * dim);
        EXPECT_EQ(part.row_end, last * dim);
      }
    }
  }
}

std::vector<std::string> lines(const Program& program,
                               std::string (*text)(const Program&, const Op&)) {
  std::vector<std::string> out;
  for (const Op& op : program.ops) out.push_back(text(program, op));
  return out;
}

// Ranks of unequal heads and vocabulary; bias and residual are on rank 0 alone.
TEST(Shard, CG22RanksShareEveryOpButWhatFollowsFromTheRank) {
  for (const ModelConfig& config : tiny_models()) {
    const Program plain = build(aligned(config), DType::kBFloat16), fused = fuse(plain);
    for (const int32_t rows : {0, 4, 63, 64}) {  // which the second rank's one KV head could have
      for (const Program* whole : {&plain, &fused}) {
        if (rows > 0 && whole == &plain) continue;  // of fused ops alone
        std::vector<Program> ranks;
        for (int rank = 0; rank < 2; ++rank) {
          Program program = shard(*whole, rank, 2).value();
          if (rows == 4) program = lower_few_rows(program, few_rows_device(), true);
          if (rows > 4) program = lower_some_rows(program, few_rows_device(), rows, true);
          ranks.push_back(std::move(program));
        }
        EXPECT_EQ(lines(ranks[0], print_shared), lines(ranks[1], print_shared));
        EXPECT_NE(lines(ranks[0], print), lines(ranks[1], print));
      }
    }
  }
}

TEST(Shard, VocabularyShardsAreEqualAndPadded) {
  const auto last = shard(fuse(build(tiny_llama())), 1, 2);  // 100 tokens: 64 + 36
  for (const Op& op : last->ops) {
    if (const auto* embed = std::get_if<EmbedOp>(&op)) {
      EXPECT_EQ(embed->vocab_begin, 64);
      EXPECT_EQ(embed->vocab_end, 100);
      const Value& table = last->value(embed->table);
      EXPECT_EQ(table.rows.scale, 64);
      EXPECT_EQ(table.parts.at(0).pad_rows, 28);
    }
    if (const auto* sample = std::get_if<SampleOp>(&op)) {
      EXPECT_EQ(sample->shards, 2);
      EXPECT_EQ(sample->vocab_size, 100);
      EXPECT_EQ(last->value(sample->logits).rows, Dim::requests(2));
      EXPECT_EQ(last->value(sample->logits).cols, 64);
    }
  }
}

TEST(Shard, TiedEmbeddingsStayOneWeight) {
  const auto program = shard(fuse(build(tiny_llama())), 0, 2);
  int tables = 0;
  for (const Value& value : program->values)
    for (const WeightPart& part : value.parts) tables += part.tensor == "model.embed_tokens.weight";
  EXPECT_EQ(tables, 1);
}

TEST(Shard, BiasOfARowParallelLinearIsOnRank0Alone) {
  const Program program = fuse(build(tiny_biased_llama()));
  for (int rank = 0; rank < 2; ++rank) {
    const Program sharded = *shard(program, rank, 2);
    for (const Op& op : sharded.ops) {
      const auto* linear = std::get_if<LinearOp>(&op);
      if (linear == nullptr || linear->parallel != Parallel::kRow) continue;
      EXPECT_EQ(linear->bias != kNoValue, rank == 0);
    }
  }
}

TEST(Shard, OneRankIsTheProgramItself) {
  const Program program = fuse(build(tiny_llama()));
  const auto same = shard(program, 0, 1);
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->ops.size(), program.ops.size());
  for (const Op& op : same->ops) EXPECT_FALSE(definition(op).collective);
}

TEST(Shard, MoreRanksThanHeadsIsAnErrorThatNamesThem) {
  const ModelConfig config = tiny_llama();
  const auto sharded = shard(fuse(build(config)), 0, static_cast<int>(config.num_heads) + 1);
  ASSERT_FALSE(sharded.has_value());
  EXPECT_EQ(sharded.error().field, "tensor_parallel_size");
  EXPECT_NE(sharded.error().message.find(fmt::format("num_attention_heads {}", config.num_heads)),
            std::string::npos);
}

TEST(Shard, TooNarrowAnMlpIsAnErrorThatNamesIt) {
  ModelConfig config = tiny_llama();
  config.intermediate_size = 32;
  const auto sharded = shard(fuse(build(config)), 0, 3);
  ASSERT_FALSE(sharded.has_value());
  EXPECT_NE(sharded.error().message.find("intermediate_size 32"), std::string::npos);
}

TEST(Shard, ARankThatDoesNotExistIsAnError) {
  EXPECT_FALSE(shard(build(tiny_llama()), 2, 2).has_value());
  EXPECT_FALSE(shard(build(tiny_llama()), -1, 2).has_value());
  EXPECT_FALSE(shard(build(tiny_llama()), 0, 0).has_value());
}

}  // namespace
}  // namespace refrain::worker::test
