// The printed text of programs, held against tests/program/golden. After a change that is meant,
// REFRAIN_UPDATE_GOLDEN=1 writes the files anew; the diff is for review.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/lora.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

namespace refrain::worker::test {
namespace {

void expect_golden(const std::string& name, const Program& program) {
  const std::string path = "tests/program/golden/" + name + ".txt";
  const std::string text = print(program);
  if (std::getenv("REFRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(golden.str(), text) << path << ": REFRAIN_UPDATE_GOLDEN=1 writes it anew";
}

TEST(Golden, PlainLlama) { expect_golden("llama_plain", build(tiny_llama(), DType::kBFloat16)); }

TEST(Golden, FusedLlama) {
  expect_golden("llama_fused", fuse(build(tiny_llama(), DType::kBFloat16)));
}

TEST(Golden, FusedLlamaRank1Of2) {
  expect_golden("llama_fused_rank1of2", *shard(fuse(build(tiny_llama(), DType::kBFloat16)), 1, 2));
}

TEST(Golden, FusedLlamaWithPromptLookupRank1Of2) {
  BuildLimits limits;
  limits.step = {64, 8, 16, 64};
  limits.max_blocks = 4;
  limits.num_drafts = 3;
  limits.lookup_least = 2;
  limits.lookup_most = 4;
  limits.history_cols = 72;
  expect_golden("llama_ngram_fused_rank1of2",
                *shard(fuse(build(tiny_llama(), DType::kBFloat16, limits)), 1, 2));
}

TEST(Golden, FusedLlamaWithAdaptersRank1Of2) {
  const Program plain = *shard(fuse(build(tiny_llama(), DType::kBFloat16)), 1, 2);
  expect_golden("llama_lora_fused_rank1of2", add_lora(plain, {.places = 2, .max_rank = 8}).program);
}

// A draft model, and a target that has its drafts.
TEST(Golden, FusedLlamaOfADraftModel) {
  BuildLimits limits = limits_with_drafts();
  limits.draft_groups = {{.name = "full_attention"}};
  expect_golden("llama_drafted_fused", fuse(build(tiny_llama(), DType::kBFloat16, limits)));
}

TEST(Golden, FusedDraftRank1Of2) {
  BuildLimits limits = limits_with_drafts();
  limits.drafts = true;
  const Program draft = *shard(fuse(build(tiny_llama(), DType::kBFloat16, limits)), 1, 2);
  expect_golden("draft_fused_rank1of2", draft);
  const Program plain = *shard(fuse(build(tiny_llama(), DType::kBFloat16)), 1, 2);
  EXPECT_EQ(std::ranges::count(draft.values, ValueKind::kWeight, &Value::kind),
            std::ranges::count(plain.values, ValueKind::kWeight, &Value::kind))
      << "every pass reads one copy of the weights";
}

TEST(Golden, FusedQwen3Rank0Of3) {
  expect_golden("qwen3_fused_rank0of3", *shard(fuse(build(tiny_qwen3(), DType::kBFloat16)), 0, 3));
}

TEST(Golden, FusedQwen3ThatPoolsRank1Of2) {
  const Program plain = build(tiny_qwen3(), DType::kBFloat16, {}, kernels::Pooling::kMean);
  expect_golden("qwen3_pooling_fused_rank1of2", *shard(fuse(plain), 1, 2));
}

TEST(Golden, FusedLlamaWithBiasesRank1Of2) {
  expect_golden("llama_biased_fused_rank1of2",
                *shard(fuse(build(tiny_biased_llama(), DType::kFloat32)), 1, 2));
}

}  // namespace
}  // namespace refrain::worker::test
