// The pass add_lora: where a Program's adapters go, and whose they are on each rank.

#include "worker/program/passes/lora.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

namespace refrain::worker::test {
namespace {

// Validation asks only whether a kernel is there.
template <class Args>
void only_there(kernels::StreamRef /*stream*/, const Args& /*args*/) {}

kernels::KernelTable lora_table() {
  kernels::KernelTable table;
  table.prepare_inputs = &only_there;
  table.embed = &only_there;
  table.rms_norm = &only_there;
  table.add_rms_norm = &only_there;
  table.linear = &only_there;
  table.lora_rows = &only_there;
  table.lora_shrink = &only_there;
  table.lora_embed = &only_there;
  table.lora_expand = &only_there;
  table.silu_mul = &only_there;
  table.rope_kv_write = &only_there;
  table.attention = &only_there;
  table.select_rows = &only_there;
  table.best_tokens = &only_there;
  table.sample = &only_there;
  return table;
}

constexpr LoraLimits kLimits = {.places = 3, .max_rank = 8};

TEST(AddLora, EveryTargetOfEveryRankIsThereOnceAndRanksAddUpToTheWhole) {
  for (const ModelConfig& config : tiny_models()) {
    for (int size = 1; size <= 2; ++size) {
      std::map<std::string, std::pair<int64_t, int64_t>> held;  // rows and columns over ranks
      for (int rank = 0; rank < size; ++rank) {
        const Program plain = *shard(fuse(build(config)), rank, size);
        const LoraProgram lora = add_lora(plain, kLimits);
        const Status valid = validate(lora.program, lora_table());
        EXPECT_TRUE(valid) << valid.error().message;
        for (size_t i = 0; i < plain.values.size(); ++i)
          ASSERT_EQ(lora.program.values[i].name, plain.values[i].name) << "values keep their ids";
        std::map<std::string, int> times;
        for (const LoraTarget& target : lora.targets) {
          EXPECT_EQ(++times[target.module], 1) << target.module;
          auto& [rows, cols] = held[target.module];
          rows += target.row_end - target.row_begin;
          cols += target.col_end - target.col_begin;
        }
        EXPECT_EQ(std::ssize(lora.targets),
                  2 + config.num_layers * static_cast<int64_t>(lora_targets().size()));
        EXPECT_EQ(times["lm_head"], 1) << "tied or not";
        EXPECT_EQ(times["model.embed_tokens"], 1);
        EXPECT_EQ(lora.program.value(lora.ranks).cols, std::ssize(lora.targets));
      }
      const LoraProgram whole = add_lora(*shard(fuse(build(config)), 0, 1), kLimits);
      for (const LoraTarget& target : whole.targets) {
        const auto& [rows, cols] = held[target.module];
        const bool by_rows = rows == target.rows && cols == target.cols * size;
        const bool by_cols = rows == target.rows * size && cols == target.cols;
        EXPECT_TRUE(by_rows || by_cols) << target.module;
      }
    }
  }
}

// No exchange is new, and the warm-up still knows equal layers.
TEST(AddLora, TheOpsStandBehindTheirLinearsAndNoneIsForARankAlone) {
  const Program plain = *shard(fuse(build(tiny_llama())), 0, 2);
  const Program with = add_lora(plain, kLimits).program;
  const auto count = [](const Program& program, const char* name) {
    return std::ranges::count_if(program.ops,
                                 [name](const Op& op) { return op_name(op) == std::string(name); });
  };
  EXPECT_EQ(count(with, "lora_rows"), 1);
  EXPECT_EQ(count(with, "lora_shrink"), count(plain, "linear"));
  EXPECT_EQ(count(with, "lora_embed"), 1);
  EXPECT_EQ(count(with, "lora_expand"), count(with, "lora_shrink") + 1);
  EXPECT_EQ(count(with, "all_reduce_add_rms_norm"), count(plain, "all_reduce_add_rms_norm"));
  EXPECT_EQ(distinct_pieces(with).size(), distinct_pieces(plain).size());
  const Program other = add_lora(*shard(fuse(build(tiny_llama())), 1, 2), kLimits).program;
  ASSERT_EQ(with.ops.size(), other.ops.size());
  for (size_t i = 0; i < with.ops.size(); ++i)
    EXPECT_EQ(print_shared(with, with.ops[i]), print_shared(other, other.ops[i]));
}

// Where the shares of a row-parallel linear are unequal, all ranks leave it as it is.
TEST(LowerLoraRows, ALinearAndItsAdaptersAreOneOpAndSiluMulGoesWithThem) {
  ModelConfig config = aligned(tiny_llama());
  config.hidden_size = 192;
  config.intermediate_size = 256;
  const auto lowered = [&config](int rank, int size, int32_t max_rank) {
    const Program plain = add_residuals(*shard(fuse(build(config, DType::kBFloat16)), rank, size));
    return lower_lora_rows(add_lora(plain, {.places = 3, .max_rank = max_rank}).program,
                           few_rows_device());
  };
  const auto names = [](const Program& program) {
    std::map<std::string, int> counts;
    for (const Op& op : program.ops) ++counts[op_name(op)];
    return counts;
  };
  kernels::KernelTable table = lora_table();
  table.lora_linear = &only_there;
  const Program one = lowered(0, 1, 8);
  const Status valid = validate(one, table);
  EXPECT_TRUE(valid) << valid.error().message;
  auto counts = names(one);
  const auto layers = static_cast<int>(config.num_layers);
  // Gate and up, and down. q, k and v have no whole tiles each, the heads too few columns, and
  // lm_head's result is float32.
  EXPECT_EQ(counts["lora_linear"], 2 * layers);
  EXPECT_EQ(counts["silu_mul"], 0);
  EXPECT_EQ(counts["lora_shrink"], 2 * layers + 1);
  EXPECT_EQ(counts["lora_expand"], 2 * layers + 2);
  EXPECT_EQ(names(lowered(0, 1, 16))["lora_linear"], 0) << "beyond what the device takes";
  for (int rank = 0; rank < 3; ++rank)  // gate and up alone have shares that it takes
    EXPECT_EQ(names(lowered(rank, 3, 8))["lora_linear"], layers) << "rank " << rank;
}

}  // namespace
}  // namespace refrain::worker::test
