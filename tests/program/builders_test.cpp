// The builders of Programs, each by itself.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "tests/program/tiny_models.h"
#include "worker/program/draft_passes.h"
#include "worker/program/step_ends.h"

namespace refrain::worker::test {
namespace {

ProgramBuilder make_builder(const BuildLimits& limits = {}) {
  return {"built", DType::kBFloat16, DType::kBFloat16, 100, limits};
}

std::vector<std::string> names_of_ops(const Program& program) {
  std::vector<std::string> names;
  for (const Op& op : program.ops) names.emplace_back(op_name(op));
  return names;
}

TEST(ProgramBuilder, AWeightAskedForTwiceIsOneValue) {
  ProgramBuilder builder = make_builder();
  const ValueId table = builder.matrix("table", 100, 8, SplitUnit::kVocab);
  EXPECT_EQ(builder.matrix("table", 100, 8, SplitUnit::kVocab), table);
  EXPECT_NE(builder.matrix("other", 100, 8, SplitUnit::kVocab), table);
  EXPECT_THROW(builder.matrix("table", 100, 9, SplitUnit::kVocab), FatalError);
}

TEST(ProgramBuilder, LayersOfAStateGroupAreAlike) {
  ProgramBuilder builder = make_builder();
  const int group = builder.paged_group("full_attention");
  const AttentionShape shape{.q_heads = 2, .kv_heads = 1, .head_dim = 4};
  builder.kv_cache(group, 0, shape, DType::kBFloat16);
  EXPECT_THROW(builder.kv_cache(group, 1, shape, DType::kFloat32), FatalError);
  EXPECT_THROW(builder.slot_state(group, 1, {}), FatalError);
}

TEST(OpBuilder, NamesValuesAfterWhereTheyBelong) {
  ProgramBuilder builder = make_builder();
  OpBuilder ops(builder);
  const ValueId in = builder.activation("in", Dim::tokens(), 8);
  const ValueId plain = ops.add("sum", in, in);
  ops.begin({.step = {}, .prefix = "draft1."});
  const ValueId drafted = ops.add("sum", in, in);
  EXPECT_EQ(builder.value(plain).name, "sum");
  EXPECT_EQ(builder.value(drafted).name, "draft1.sum");
  EXPECT_EQ(names_of_ops(builder.program()), (std::vector<std::string>{"add", "add"}));
}

TEST(StepEnds, BeginAndEndAStep) {
  ProgramBuilder builder = make_builder();
  builder.paged_group("full_attention");
  StepEnds ends(builder);
  const ValueId ids = ends.prepare_inputs().token_ids;
  EXPECT_EQ(ends.token_ids(), ids);
  ends.sample(builder.activation("logits", Dim::requests(), 100));
  EXPECT_EQ(names_of_ops(builder.program()),
            (std::vector<std::string>{"prepare_inputs", "sample"}));
  EXPECT_EQ(builder.program().logits_per_request, 1);
}

TEST(StepEnds, PutDraftsBetweenWhereThereAreSome) {
  ProgramBuilder builder = make_builder(limits_with_drafts());
  builder.paged_group("full_attention");
  StepEnds ends(builder);
  ends.prepare_inputs();
  const ValueId ids = ends.token_ids();
  EXPECT_EQ(ends.token_ids(), ids);
  EXPECT_EQ(builder.value(ids).name, "token_ids.drafted");
  ends.sample(builder.activation("logits", Dim::samples(), 100));
  EXPECT_EQ(
      names_of_ops(builder.program()),
      (std::vector<std::string>{"prepare_inputs", "propose_ngram", "sample", "accept_drafts"}));
  EXPECT_EQ(builder.program().logits_per_request, 3);
}

TEST(DraftPasses, GoOnFromTheStepThenFromEachOther) {
  BuildLimits limits = limits_with_drafts();
  limits.drafts = true;
  ProgramBuilder builder = make_builder(limits);
  builder.paged_group("full_attention");
  DraftPasses passes(builder);
  const OpScope first = passes.begin(0);
  EXPECT_TRUE(builder.value(first.step.token_ids).passed);
  EXPECT_EQ(first.prefix, "");
  for (int pass = 1; pass < limits.num_passes(); ++pass) {
    const OpScope& scope = passes.begin(pass);
    EXPECT_FALSE(builder.value(scope.step.token_ids).passed);
    EXPECT_EQ(builder.value(scope.step.token_ids).name, scope.prefix + "token_ids");
    passes.end(builder.activation("logits", Dim::requests(), 100));
  }
  EXPECT_EQ(names_of_ops(builder.program()),
            (std::vector<std::string>{"draft_inputs", "sample", "draft_inputs", "sample"}));
}

}  // namespace
}  // namespace refrain::worker::test
