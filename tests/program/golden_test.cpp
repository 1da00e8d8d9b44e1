// The printed text of programs, held against tests/program/golden. After a change that is meant,
// REFRAIN_UPDATE_GOLDEN=1 writes the files anew; the diff is for review.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/program/tiny_models.h"
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

TEST(Golden, FusedQwen3Rank0Of3) {
  expect_golden("qwen3_fused_rank0of3", *shard(fuse(build(tiny_qwen3(), DType::kBFloat16)), 0, 3));
}

TEST(Golden, FusedLlamaWithBiasesRank1Of2) {
  expect_golden("llama_biased_fused_rank1of2",
                *shard(fuse(build(tiny_biased_llama(), DType::kFloat32)), 1, 2));
}

}  // namespace
}  // namespace refrain::worker::test
