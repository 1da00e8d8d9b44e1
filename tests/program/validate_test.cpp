#include <gtest/gtest.h>

#include <algorithm>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker::test {
namespace {

template <class Args>
void no_kernel(kernels::StreamRef, const Args&) {}

kernels::KernelTable full_table() {
  return {.prepare_inputs = no_kernel,
          .propose_ngram = no_kernel,
          .accept_drafts = no_kernel,
          .embed = no_kernel,
          .rms_norm = no_kernel,
          .add_rms_norm = no_kernel,
          .add = no_kernel,
          .linear = no_kernel,
          .silu_mul = no_kernel,
          .rope_kv_write = no_kernel,
          .share_keys = no_kernel,
          .attention = no_kernel,
          .select_rows = no_kernel,
          .best_tokens = no_kernel,
          .sample = no_kernel,
          .pool = no_kernel,
          .fused_linear = no_kernel,
          .rope_attention = no_kernel,
          .few_rows = {}};
}

// The message of validate(), or "" when it finds nothing.
std::string complaint(const Program& program) {
  const Status status = validate(program, full_table());
  return status ? "" : status.error().message;
}

template <class O>
O& find_op(Program& program) {
  for (Op& op : program.ops)
    if (auto* found = std::get_if<O>(&op)) return *found;
  throw std::runtime_error("no such op");
}

kernels::FewRows few_rows() {
  kernels::FewRows rows = few_rows_device();
  rows.max_ranks = 4;
  return rows;
}

TEST(Validate, AcceptsTheLoweringForFewRows) {
  const kernels::FewRows rows = few_rows();
  for (ModelConfig config : tiny_models()) {
    config.hidden_size = 32;
    BuildLimits speculates;
    speculates.num_drafts = 3;
    speculates.lookup_least = speculates.lookup_most = 2;
    speculates.history_cols = 72;
    for (const BuildLimits& limits : {BuildLimits{}, speculates}) {
      for (const int size : {1, 3}) {
        for (const bool decode : {false, true}) {
          const Program program = lower_few_rows(
              *shard(fuse(build(config, DType::kBFloat16, limits)), 0, size), rows, decode);
          EXPECT_EQ(complaint(program), "") << limits.num_drafts << " drafts, decode " << decode;
        }
      }
    }
  }
}

TEST(Validate, AcceptsEveryFormOfAProgramThatPools) {
  using kernels::Pooling;
  const kernels::FewRows rows = few_rows();
  ModelConfig config = tiny_qwen3();
  config.hidden_size = 32;
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kFirst}) {
    for (const int size : {1, 2}) {
      const Program plain = *shard(fuse(build(config, DType::kBFloat16, {}, pooling)), 0, size);
      EXPECT_EQ(complaint(plain), "");
      EXPECT_EQ(complaint(add_residuals(plain)), "");
      for (const bool decode : {false, true}) {
        SCOPED_TRACE(testing::Message() << "decode " << decode);
        EXPECT_EQ(complaint(lower_some_rows(add_residuals(plain), rows, 64, decode)), "");
        EXPECT_EQ(complaint(lower_few_rows(plain, rows, decode)), "");
      }
    }
  }
}

TEST(Validate, AcceptsFusedAndShardedPrograms) {
  for (const ModelConfig& config : tiny_models())
    for (int size = 1; size <= 3; ++size)
      for (int rank = 0; rank < size; ++rank)
        EXPECT_EQ(complaint(*shard(fuse(build(config, DType::kBFloat16)), rank, size)), "");
}

// Shared keys are read before attention's predecessor has ended, so they are made behind
// prepare_inputs, once for all layers that attend to the same.
TEST(Validate, P7KeysAreSharedOutOnceForAllLayersAndBeforeALinear) {
  const Program fused = fuse(build(tiny_llama()));
  Program plain = add_key_shares(fused, {true}, 64);
  EXPECT_EQ(complaint(plain), "");
  EXPECT_EQ(plain.ops.size(), fused.ops.size() + 1);
  ASSERT_TRUE(std::holds_alternative<ShareKeysOp>(plain.ops[1]));
  EXPECT_EQ(std::get<ShareKeysOp>(plain.ops[1]).out, find_op<AttentionOp>(plain).shares);
  Program late = plain;
  const auto attention = std::ranges::find_if(
      late.ops, [](const Op& op) { return std::holds_alternative<AttentionOp>(op); });
  std::rotate(late.ops.begin() + 1, late.ops.begin() + 2, attention);
  EXPECT_NE(
      complaint(late).find("no linear stands between attention and who writes its key_shares"),
      std::string::npos);
}

// An audit runs a step again from behind what makes its inputs (CG-41).
TEST(Validate, KeysAreSharedOutBehindDrafts) {
  BuildLimits limits;
  limits.num_drafts = 3;
  limits.lookup_least = limits.lookup_most = 2;
  limits.history_cols = 72;
  const Program program =
      add_key_shares(fuse(build(tiny_llama(), DType::kFloat32, limits)), {true}, 64);
  EXPECT_EQ(complaint(program), "");
  EXPECT_TRUE(std::holds_alternative<ProposeNgramOp>(program.ops[1]));
  EXPECT_TRUE(std::holds_alternative<ShareKeysOp>(program.ops[2]));
}

TEST(Validate, KeysOfLayersWithAndWithoutAWindowAreSharedOutApart) {
  Program program = fuse(build(tiny_llama()));
  find_op<AttentionOp>(program).sliding_window = 8;
  program = add_key_shares(std::move(program), {true}, 64);
  EXPECT_EQ(complaint(program), "");
  std::vector<int64_t> windows;
  for (const Op& op : program.ops) {
    if (const auto* shares = std::get_if<ShareKeysOp>(&op))
      windows.push_back(shares->sliding_window);
    const auto* attention = std::get_if<AttentionOp>(&op);
    if (attention == nullptr) continue;
    const auto same = std::ranges::find_if(program.ops, [&](const Op& made) {
      const auto* shares = std::get_if<ShareKeysOp>(&made);
      return shares != nullptr && shares->out == attention->shares;
    });
    ASSERT_NE(same, program.ops.end());
    EXPECT_EQ(std::get<ShareKeysOp>(*same).sliding_window, attention->sliding_window);
  }
  EXPECT_EQ(windows, (std::vector<int64_t>{8, 0}));
}

TEST(Validate, NamesTheOpWithoutAKernel) {
  EXPECT_NE(complaint(build(tiny_llama())).find("no kernel for rope"), std::string::npos);
  kernels::KernelTable table = full_table();
  table.attention = nullptr;
  const Status status = validate(fuse(build(tiny_llama())), table);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("no kernel for attention"), std::string::npos);
}

TEST(Validate, P7AsksForALinearBetweenPrepareInputsAndAttention) {
  Program program = fuse(build(tiny_llama()));
  auto attention = std::find_if(program.ops.begin(), program.ops.end(), [](const Op& op) {
    return std::holds_alternative<AttentionOp>(op);
  });
  std::get<AttentionOp>(*attention).q = find_op<LinearOp>(program).weight;  // needs no op before it
  program.ops.erase(program.ops.begin() + 1, attention);
  EXPECT_NE(complaint(program).find("no linear stands between attention and who writes its "
                                    "query_start"),
            std::string::npos);
}

TEST(Validate, P7ALinearsOwnResultIsNotReadEarly) {
  Program program = fuse(build(tiny_llama()));
  const auto first = [&](auto holds) { return std::ranges::find_if(program.ops, holds); };
  const auto linear = first([](const Op& op) { return std::holds_alternative<LinearOp>(op); });
  const auto attention =
      first([](const Op& op) { return std::holds_alternative<AttentionOp>(op); });
  auto& reads = std::get<AttentionOp>(*attention);
  reads.q = std::get<LinearOp>(*linear).weight;  // needs no op before it
  const ValueId made = reads.seq_lens = std::get<LinearOp>(*linear).out;
  program.ops.erase(linear + 1, attention);
  EXPECT_NE(complaint(program).find("no linear stands between attention and who writes its " +
                                    program.value(made).name),
            std::string::npos);
}

TEST(Validate, FindsAValueReadBeforeItIsDefined) {
  Program program = fuse(build(tiny_llama()));
  std::swap(program.ops[3], program.ops[5]);
  EXPECT_NE(complaint(program).find("before it is defined"), std::string::npos);
}

TEST(Validate, FindsAnInputThatNoOpHasMadeYet) {
  Program program = fuse(build(tiny_llama()));
  std::swap(program.ops[0], program.ops[1]);
  EXPECT_NE(complaint(program).find("token_ids is read before it is defined"), std::string::npos);
}

TEST(Validate, FindsAChangeOfWhatIsNoState) {
  Program program = fuse(build(tiny_llama()));
  find_op<RopeKvWriteOp>(program).cache = find_op<PrepareInputsOp>(program).positions;
  EXPECT_NE(complaint(program).find("positions is changed but is no state"), std::string::npos);
}

TEST(Validate, CG37FindsScratchMemoryThatTwoOpsUse) {
  Program program = fuse(build(tiny_llama()));
  find_op<SampleOp>(program).scratch = find_op<PrepareInputsOp>(program).block_copy;
  EXPECT_NE(complaint(program).find("is not its own scratch memory"), std::string::npos);
}

TEST(Validate, FindsAValueDefinedTwice) {
  Program program = fuse(build(tiny_llama()));
  program.ops.insert(program.ops.begin() + 2, program.ops[1]);
  EXPECT_NE(complaint(program).find("a second time"), std::string::npos);
}

TEST(Validate, FindsAReadOfWhatWasChangedInPlace) {
  Program program = fuse(build(tiny_llama()));
  find_op<AttentionOp>(program).q = find_op<RopeKvWriteOp>(program).qkv;
  EXPECT_NE(complaint(program).find("after it was changed in place"), std::string::npos);
}

TEST(Validate, FindsShapesThatDisagree) {
  Program program = fuse(build(tiny_llama()));
  program.values[static_cast<size_t>(find_op<LinearOp>(program).in)].cols += 2;
  EXPECT_NE(complaint(program), "");
}

TEST(Validate, FindsWeightPartsThatDoNotAddUp) {
  Program program = fuse(build(tiny_llama()));
  const ValueId weight = find_op<LinearOp>(program).weight;
  program.values[static_cast<size_t>(weight)].parts[0].row_end -= 1;
  EXPECT_NE(complaint(program).find("its parts"), std::string::npos);
}

TEST(Validate, FindsAMissingOperand) {
  Program program = fuse(build(tiny_llama()));
  find_op<LinearOp>(program).weight = kNoValue;
  EXPECT_NE(complaint(program).find("no weight"), std::string::npos);
}

TEST(Validate, FindsAnIdOutOfRange) {
  Program program = fuse(build(tiny_llama()));
  find_op<LinearOp>(program).in = 100000;
  EXPECT_NE(complaint(program).find("100000"), std::string::npos);
}

TEST(Validate, FindsOddColumnsOfABFloat16Weight) {
  ModelConfig config = tiny_llama();
  config.hidden_size = 25;
  EXPECT_NE(complaint(fuse(build(config, DType::kBFloat16))).find("even number"),
            std::string::npos);
}

}  // namespace
}  // namespace refrain::worker::test
