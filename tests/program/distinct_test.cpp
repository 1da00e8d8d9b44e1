// CG-21: what a warm-up run launches: every kind of launch of a Program once, not every layer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker::test {
namespace {

using testing::ElementsAre;

ModelConfig llama_of_layers(int layers) {
  ModelConfig config = tiny_llama();
  config.num_layers = layers;
  return config;
}

std::vector<std::string> names(const Program& program, OpRange range) {
  std::vector<std::string> all;
  for (int i = range.begin; i < range.end; ++i)
    all.emplace_back(op_name(program.ops[static_cast<size_t>(i)]));
  return all;
}

// An op's name, and rows, columns and type of what it reads and writes.
std::set<std::string> launches(const Program& program, const std::vector<OpRange>& ranges) {
  std::set<std::string> all;
  for (const OpRange range : ranges) {
    for (int i = range.begin; i < range.end; ++i) {
      const Op& op = program.ops[static_cast<size_t>(i)];
      std::string launch = op_name(op);
      const auto add = [&](const std::vector<ValueId>& ids) {
        for (const ValueId id : ids) {
          const Value& value = program.value(id);
          launch += " " + std::to_string(value.rows.extent) + ":" +
                    std::to_string(value.rows.scale) + "x" + std::to_string(value.cols) +
                    to_string(value.dtype);
        }
      };
      add(reads(op));
      add(writes(op));
      all.insert(launch);
    }
  }
  return all;
}

TEST(DistinctPieces, OfEqualLayersAreTheFirstOneAMiddleOneAndTheEnd_CG21) {
  const Program program = fuse(build(llama_of_layers(12)));
  const std::vector<OpRange> pieces = distinct_pieces(program);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(names(program, pieces[0]).front(), "prepare_inputs");
  EXPECT_THAT(names(program, pieces[1]), ElementsAre("attention"));
  EXPECT_THAT(names(program, pieces[2]),
              ElementsAre("linear", "add_rms_norm", "linear", "silu_mul", "linear", "add_rms_norm",
                          "linear", "rope_kv_write"));
  EXPECT_EQ(names(program, pieces[3]).back(), "sample");
}

TEST(DistinctPieces, ALayerThatDiffersIsThere) {
  Program program = fuse(build(llama_of_layers(12)));
  int seen = 0, changed = 0;
  for (int i = 0; i < std::ssize(program.ops); ++i) {
    auto* attention = std::get_if<AttentionOp>(&program.ops[static_cast<size_t>(i)]);
    if (attention == nullptr || ++seen != 7) continue;
    attention->sliding_window = 5;
    changed = i;
  }
  const std::vector<OpRange> pieces = distinct_pieces(program);
  ASSERT_EQ(pieces.size(), 5u);
  EXPECT_EQ(pieces[3].begin, changed);
}

RC_GTEST_PROP(DistinctPieces, LaunchWhateverTheProgramLaunches, ()) {
  const ModelConfig config = random_model();
  const int size = *rc::gen::inRange(1, static_cast<int>(config.num_kv_heads) + 1);
  std::vector<OpRange> of_first;
  for (int rank = 0; rank < size; ++rank) {
    const Program program = *shard(fuse(build(config)), rank, size);
    const std::vector<OpRange> pieces = distinct_pieces(program);
    RC_ASSERT(launches(program, pieces) ==
              launches(program, {{0, static_cast<int>(program.ops.size())}}));
    if (rank == 0) of_first = pieces;
    RC_ASSERT(pieces.size() == of_first.size());  // all ranks meet in the same collectives
    for (size_t i = 0; i < pieces.size(); ++i) RC_ASSERT(pieces[i].begin == of_first[i].begin);
  }
}

TEST(DistinctPieces, ASumBetweenTwoLinearsBeginsAndEndsInOne) {
  const Program program =
      lower_few_rows(*shard(fuse(build(aligned(llama_of_layers(12)), DType::kBFloat16)), 0, 2),
                     few_rows_device(), true);
  int sums = 0;
  for (const OpRange range : distinct_pieces(program)) {
    std::set<int32_t> pushed;
    for (int i = range.begin; i < range.end; ++i) {
      const auto* linear = std::get_if<FusedLinearOp>(&program.ops[static_cast<size_t>(i)]);
      if (linear == nullptr) continue;
      if (linear->pull >= 0) {
        EXPECT_EQ(pushed.erase(linear->pull), 1u);
      }
      if (linear->push >= 0) pushed.insert(linear->push);
      sums += linear->push >= 0 ? 1 : 0;
    }
    EXPECT_TRUE(pushed.empty());
  }
  EXPECT_EQ(sums, 4);  // of a middle layer and of the last
}

}  // namespace
}  // namespace refrain::worker::test
