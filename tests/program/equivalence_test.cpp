// Rewritten programs compute what the plain one computes: the passes held against the oracle.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/program/interpreter.h"
#include "tests/program/tiny_models.h"
#include "worker/program/step_ends.h"

namespace refrain::worker::test {
namespace {

std::vector<Program> shards(const Program& program, int size) {
  std::vector<Program> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto sharded = shard(program, rank, size);
    if (!sharded) throw std::runtime_error(sharded.error().message);
    all.push_back(*sharded);
  }
  return all;
}

// Logits of a prefill and of the decode step after it.
std::vector<std::vector<float>> logits(std::vector<Program> ranks, const ModelConfig& config,
                                       Storage storage) {
  Ranks all(std::move(ranks), config, storage);
  const Step prefill = make_prefill({3, 1, 7}, config.vocab_size, 1);
  std::vector<std::vector<float>> result = all.run(prefill);
  for (auto& row : all.run(make_decode(prefill, config.vocab_size, 2)))
    result.push_back(std::move(row));
  return result;
}

std::vector<std::vector<float>> plain_logits(const ModelConfig& config) {
  return logits({build(config)}, config, Storage::kSeparate);
}

TEST(Fuse, GivesThePlainLogits) {
  for (const ModelConfig& config : tiny_models()) {
    const Program fused = fuse(build(config));
    EXPECT_LT(distance(plain_logits(config), logits({fused}, config, Storage::kSeparate)),
              kTolerance)
        << config.architecture;
  }
}

TEST(Fuse, LeavesOnlyOpsThatHaveKernels) {
  for (const ModelConfig& config : tiny_models())
    for (const Op& op : fuse(build(config)).ops)
      EXPECT_FALSE(std::holds_alternative<RopeOp>(op) || std::holds_alternative<KvWriteOp>(op) ||
                   std::holds_alternative<SiluGateOp>(op) || std::holds_alternative<AddOp>(op))
          << op_name(op);
}

// A residual that is read once more after the addition: it must not be overwritten.
Program program_with_late_reader(const ModelConfig& config) {
  ProgramBuilder builder("late_reader", DType::kFloat32, DType::kFloat32, config.vocab_size);
  OpBuilder ops(builder);
  StepEnds ends(builder);
  const int64_t hidden = config.hidden_size;
  const ValueId table = builder.matrix("table", config.vocab_size, hidden, SplitUnit::kVocab);
  ops.begin({ends.prepare_inputs()});
  const ValueId ids = ends.token_ids();
  const ValueId residual = ops.embed("embedding", ids, table);
  const ValueId delta = ops.rms_norm("delta", residual, builder.vector("a", hidden), 1e-5);
  const ValueId sum = ops.add("sum", residual, delta);
  const ValueId normed = ops.rms_norm("normed", sum, builder.vector("b", hidden), 1e-5);
  const ValueId late = ops.add("late", normed, residual);
  ends.sample(ops.lm_head(ops.select_rows("rows", late), table));
  return builder.finish(config.max_position_embeddings);
}

TEST(Fuse, KeepsAResidualThatIsReadLater) {
  const ModelConfig config = tiny_llama();
  Program plain = program_with_late_reader(config);
  for (Value& value : plain.values)  // an output, so that no select_rows copies the residual first
    if (value.name == "late") value.kind = ValueKind::kOutput;
  EXPECT_LT(distance(logits({plain}, config, Storage::kSeparate),
                     logits({fuse(plain)}, config, Storage::kPlanned)),
            kTolerance);
}

TEST(Fuse, SelectsNoRowsOfAHiddenStateThatTheProgramNames) {
  Program plain = build(tiny_llama());
  for (Value& value : plain.values)
    if (value.name == "model.norm") value.kind = ValueKind::kOutput;
  const Program fused = fuse(plain);
  bool found = false;
  for (const Value& value : fused.values)
    if (value.name == "model.norm") found = value.rows == Dim::tokens();
  EXPECT_TRUE(found);
}

TEST(Fuse, TheLastLayerWorksOnOneRowARequest) {
  const Program fused = fuse(build(tiny_llama()));
  bool after_last_attention = false;
  int linears = 0;
  for (const Op& op : fused.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op))
      after_last_attention = attention->layer == 1;
    const auto* linear = std::get_if<LinearOp>(&op);
    if (linear == nullptr || !after_last_attention) continue;
    EXPECT_EQ(fused.value(linear->out).rows, Dim::requests());
    ++linears;
  }
  EXPECT_EQ(linears, 4);  // o, gate_up, down, lm_head
}

TEST(PlanMemory, ExecutionInTheArenaGivesThePlainLogits) {
  for (const ModelConfig& config : tiny_models()) {
    EXPECT_LT(distance(plain_logits(config), logits({build(config)}, config, Storage::kPlanned)),
              kTolerance);
    EXPECT_LT(
        distance(plain_logits(config), logits({fuse(build(config))}, config, Storage::kPlanned)),
        kTolerance);
  }
}

TEST(Shard, RanksTogetherGiveThePlainLogits) {
  for (const ModelConfig& config : tiny_models()) {
    const auto expected = plain_logits(config);
    for (int size = 1; size <= 3; ++size) {
      EXPECT_LT(distance(expected, logits(shards(build(config), size), config, Storage::kPlanned)),
                kTolerance)
          << config.architecture << " plain on " << size;
      EXPECT_LT(
          distance(expected, logits(shards(fuse(build(config)), size), config, Storage::kPlanned)),
          kTolerance)
          << config.architecture << " fused on " << size;
    }
  }
}

RC_GTEST_PROP(Passes, RandomModelsGiveThePlainLogits, ()) {
  const ModelConfig config = random_model();
  const int size = *rc::gen::inRange(1, most_ranks(config) + 1);
  const auto ranks = shards(fuse(build(config)), size);
  RC_ASSERT(distance(plain_logits(config), logits(ranks, config, Storage::kPlanned)) < kTolerance);
}

TEST(Oracle, NoticesASlightlyWrongProgram) {
  const ModelConfig config = tiny_llama();
  Program broken = fuse(build(config));
  for (Op& op : broken.ops)
    if (auto* attention = std::get_if<AttentionOp>(&op)) attention->scale *= 1.01f;
  EXPECT_GT(distance(plain_logits(config), logits({broken}, config, Storage::kPlanned)),
            kTolerance);
}

}  // namespace
}  // namespace refrain::worker::test
