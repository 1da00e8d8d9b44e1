// The lowering for few rows computes what the plain Program computes, and leaves the ops it says.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <utility>

#include "tests/program/interpreter.h"
#include "tests/program/tiny_models.h"
#include "worker/program/printer.h"

namespace refrain::worker::test {
namespace {

std::vector<Program> lowered(const ModelConfig& config, int size, bool decode) {
  std::vector<Program> ranks;
  for (int rank = 0; rank < size; ++rank) {
    Program program =
        lower_few_rows(shard(fuse(build(config, DType::kBFloat16)), rank, size).value(),
                       few_rows_device(), decode);
    for (Value& value : program.values) {  // the oracle computes in float32
      if (value.dtype == DType::kBFloat16) value.dtype = DType::kFloat32;
    }
    ranks.push_back(std::move(program));
  }
  return ranks;
}

// Logits of steps of one token a request.
std::vector<std::vector<float>> decode_logits(std::vector<Program> programs,
                                              const ModelConfig& config) {
  Ranks ranks(std::move(programs), config, Storage::kPlanned, 4, 4);
  Step step = make_prefill({1, 1, 1}, config.vocab_size, 1);
  std::vector<std::vector<float>> result = ranks.run(step);
  for (uint32_t i = 0; i < 2; ++i) {
    const auto slots = step.row_slots;
    step = make_decode(step, config.vocab_size, 2 + i);
    for (size_t r = 0; r < slots.size(); ++r) {  // make_decode starts its slots anew
      step.slots[r] += 100 * i;
      step.row_slots[r].back() += 100 * i;
    }
    for (auto& row : ranks.run(step)) result.push_back(std::move(row));
  }
  return result;
}

std::vector<std::vector<float>> prefill_logits(std::vector<Program> programs,
                                               const ModelConfig& config) {
  Ranks ranks(std::move(programs), config, Storage::kPlanned, 4, 4);
  return ranks.run(make_prefill({3, 1}, config.vocab_size, 1));
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> all;
  for (const ModelConfig& config : tiny_models()) all.push_back(aligned(config));
  return all;
}

TEST(FewRows, GivesThePlainLogits) {
  for (const ModelConfig& config : models()) {
    for (int size = 1; size <= 3; ++size) {
      SCOPED_TRACE(config.architecture + " on " + std::to_string(size));
      EXPECT_LT(distance(decode_logits({fuse(build(config))}, config),
                         decode_logits(lowered(config, size, true), config)),
                kTolerance);
      EXPECT_LT(distance(prefill_logits({fuse(build(config))}, config),
                         prefill_logits(lowered(config, size, false), config)),
                kTolerance);
    }
  }
}

Program sharded(const ModelConfig& config, int rank = 0, int size = 1) {
  return add_residuals(shard(fuse(build(config, DType::kBFloat16)), rank, size).value());
}

// As lowered(), for more rows than few.
std::vector<Program> lowered_for_some(const ModelConfig& config, int size, int32_t rows,
                                      bool decode) {
  std::vector<Program> ranks;
  for (int rank = 0; rank < size; ++rank) {
    Program program =
        lower_some_rows(fold_norms(sharded(config, rank, size)), few_rows_device(), rows, decode);
    for (Value& value : program.values) {
      if (value.dtype == DType::kBFloat16) value.dtype = DType::kFloat32;
    }
    ranks.push_back(std::move(program));
  }
  return ranks;
}

std::string op_names(const Program& program) {
  std::string names;
  for (const Op& op : program.ops) names += std::string(op_name(op)) + " ";
  return names;
}

TEST(SomeRows, GivesThePlainLogits) {
  for (ModelConfig config : models()) {
    config.hidden_size = 192;  // SiLU·mul goes into linears of whole groups of 64 columns
    for (int size = 1; size <= 3; ++size) {
      const auto prompts = prefill_logits({fuse(build(config))}, config);
      const auto decodes = decode_logits({fuse(build(config))}, config);
      for (const int32_t rows : {8, 32, 65}) {
        SCOPED_TRACE(config.architecture + " on " + std::to_string(size) + ", rows " +
                     std::to_string(rows));
        EXPECT_LT(
            distance(prompts, prefill_logits(lowered_for_some(config, size, rows, false), config)),
            kTolerance);
        EXPECT_LT(
            distance(decodes, decode_logits(lowered_for_some(config, size, rows, true), config)),
            kTolerance);
      }
    }
  }
}

TEST(SomeRows, ResidualAndSiluMulGoIntoTheLinears) {
  ModelConfig config = aligned(tiny_llama());
  config.hidden_size = 192;
  const Program plain = sharded(config);
  // The last layer goes on with each request's last row alone.
  const auto layers = [](const std::string& mlp) {
    return "prepare_inputs embed rms_norm linear rope_kv_write attention linear rms_norm " + mlp +
           "linear rms_norm linear rope_kv_write attention select_rows linear select_rows "
           "add_rms_norm " +
           mlp + "linear rms_norm linear sample ";
  };
  EXPECT_EQ(op_names(lower_some_rows(plain, few_rows_device(), 64, false)),
            layers("fused_linear "));
  EXPECT_EQ(op_names(plain), layers("linear silu_mul "));
  // Ranks say the same, whatever their shares: blocks of 16 columns, or none.
  config.intermediate_size = 72;
  const Program odd = sharded(config);
  EXPECT_EQ(lower_some_rows(odd, few_rows_device(), 64, false).ops, odd.ops);
}

// Of many rows, where the device has it: a linear that is sampled finds the best of each row.
TEST(SomeRows, TheBestOfARowIsFoundInTheLinear) {
  ModelConfig config = aligned(tiny_llama());
  config.hidden_size = 192;
  config.vocab_size = 64;
  kernels::FewRows device = few_rows_device();
  const auto last = [&](int32_t rows) {
    const Program program = lower_some_rows(sharded(config), device, rows, true);
    const auto& sample = std::get<SampleOp>(program.ops.back());
    const auto* fused = std::get_if<FusedLinearOp>(&program.ops[program.ops.size() - 2]);
    if (fused == nullptr) return kNoValue;
    EXPECT_EQ(fused->out, sample.logits);
    EXPECT_EQ(fused->best, sample.best);
    EXPECT_EQ(fused->first_token, 0);
    EXPECT_EQ(fused->num_tokens, config.vocab_size);
    EXPECT_EQ(program.value(fused->live_logits).name, "live_logits");
    EXPECT_EQ(program.value(sample.best).cols, 2 * device.best_parts);
    return sample.best;
  };
  EXPECT_EQ(last(device.max_silu_rows), kNoValue);
  device.best_parts = 144;
  EXPECT_NE(last(device.max_silu_rows), kNoValue);
  EXPECT_NE(last(device.max_unit_norm_rows + 1), kNoValue);
  EXPECT_EQ(last(device.max_unit_norm_rows), kNoValue);
  config.vocab_size = 72;
  EXPECT_EQ(last(device.max_silu_rows), kNoValue) << "whole groups of 16 alone";
}

// Each rank of its part of the vocabulary, whose padding is no token; the logits are still gathered
// where they are asked for.
TEST(SomeRows, TheBestOfARowIsFoundInTheLinearOfEachRank) {
  ModelConfig config = aligned(tiny_llama());
  config.hidden_size = 192;
  config.vocab_size = 72;
  kernels::FewRows device = few_rows_device();
  for (const int rank : {0, 1}) {
    device.best_parts = 0;
    const Program plain = sharded(config, rank, 2);
    EXPECT_THAT(op_names(lower_some_rows(plain, device, 256, true)),
                ::testing::EndsWith(" linear all_gather best_tokens all_gather sample "));
    device.best_parts = 144;
    const Program program = lower_some_rows(plain, device, 256, true);
    EXPECT_THAT(op_names(program),
                ::testing::EndsWith(" fused_linear all_gather all_gather sample "));
    const auto at = [&program](size_t from_end) -> const Op& {
      return program.ops[program.ops.size() - from_end];
    };
    const auto& sample = std::get<SampleOp>(at(1));
    const auto& best = std::get<AllGatherOp>(at(2));
    const auto& logits = std::get<AllGatherOp>(at(3));
    const auto& linear = std::get<FusedLinearOp>(at(4));
    EXPECT_EQ(linear.first_token, rank * 64);
    EXPECT_EQ(linear.num_tokens, rank == 0 ? 64 : 8);
    EXPECT_EQ(linear.best, best.in);
    EXPECT_EQ(best.out, sample.best);
    EXPECT_EQ(best.live, kNoValue);
    EXPECT_EQ(program.value(best.out).cols, 2 * device.best_parts);
    EXPECT_EQ(program.value(best.out).rows.scale, 2);
    EXPECT_EQ(linear.out, logits.in);
    EXPECT_EQ(logits.out, sample.logits);
    EXPECT_EQ(logits.live, linear.live_logits);
  }
}

// Norms whose weights are folded go into the linears behind them, but for one of a sum of two; of
// more rows they stay.
TEST(SomeRows, FoldedNormsGoIntoTheLinears) {
  ModelConfig config = aligned(tiny_llama());
  config.hidden_size = 192;
  const kernels::FewRows device = few_rows_device();
  const auto begin = [](const std::string& linear) {
    return "prepare_inputs embed " + linear + "rope_kv_write attention linear " +
           (linear == "fused_linear " ? linear : "rms_norm fused_linear ") + "linear " + linear +
           "rope_kv_write attention select_rows linear select_rows add_rms_norm fused_linear ";
  };
  for (const bool bias : {false, true}) {
    config.attention_bias = bias;
    const Program folded = fold_norms(sharded(config));
    const auto names = [&](int32_t rows) {
      return op_names(lower_some_rows(folded, device, rows, false));
    };
    const int32_t most = device.max_unit_norm_rows;
    EXPECT_TRUE(names(most).starts_with(begin("fused_linear "))) << names(most);
    EXPECT_TRUE(names(most + 1).starts_with(begin("rms_norm linear "))) << names(most + 1);
    const Program plain = sharded(config);  // not folded
    EXPECT_EQ(op_names(lower_some_rows(plain, device, most, false)), names(most + 1));
  }
  // With one token a request the sum of two is none.
  int units = 0;
  for (const Op& op : lower_some_rows(fold_norms(sharded(config)), device, 8, true).ops) {
    const auto* fused = std::get_if<FusedLinearOp>(&op);
    if (fused == nullptr || fused->norm == kNoValue) continue;
    EXPECT_TRUE(fused->unit_norm);
    ++units;
  }
  EXPECT_EQ(units, 4);  // two in each of two layers
}

// A norm of two linears, sums over ranks, and weights that are not bfloat16.
TEST(SomeRows, NormsStayWhereTheirWeightsCannotGo) {
  const auto folds = [](const Program& program) {
    return std::ranges::count_if(program.values,
                                 [](const Value& value) { return value.norm != kNoValue; });
  };
  const ModelConfig config = aligned(tiny_llama());
  EXPECT_EQ(folds(fold_norms(sharded(config))), 4);
  EXPECT_EQ(folds(fold_norms(sharded(config, 0, 2))), 0);
  Program shared = sharded(config);
  ValueId weight = kNoValue;
  for (Op& op : shared.ops) {
    auto* norm = std::get_if<RmsNormOp>(&op);
    if (norm == nullptr) continue;
    if (weight == kNoValue) weight = norm->weight;
    norm->weight = weight;
  }
  EXPECT_EQ(folds(fold_norms(shared)), 1);
  EXPECT_EQ(folds(fold_norms(shard(fuse(build(config)), 0, 1).value())), 0);  // float32
}

TEST(SomeRows, OfOneTokenARequestTakeRopeIntoAttentionAndSelectNothing) {
  ModelConfig config = aligned(tiny_llama());
  config.hidden_size = 192;
  const Program plain = add_key_shares(sharded(config), {true}, 64);
  kernels::FewRows device = few_rows_device();
  const std::string layer = "rms_norm linear rope_attention linear rms_norm fused_linear linear ";
  EXPECT_EQ(op_names(lower_some_rows(plain, device, 8, true)),
            "prepare_inputs embed " + layer + layer + "rms_norm linear sample ");
  const int32_t limit = some_decode_limit(plain, device);
  EXPECT_EQ(op_names(lower_some_rows(plain, device, limit, true)),
            op_names(lower_some_rows(plain, device, 8, true)));
  const std::string many = op_names(lower_some_rows(plain, device, limit + 1, true));
  EXPECT_EQ(many.find("rope_attention"), std::string::npos) << many;
}

// As far as rows times the KV heads of the attention that has most.
TEST(SomeRows, OfOneTokenARequestAreAsManyAsRopeAttentionTakes) {
  kernels::FewRows device = few_rows_device();
  device.max_plain_rows = 64;
  Program program = shard(fuse(build(aligned(tiny_llama()), DType::kBFloat16)), 0, 1).value();
  const auto limit_with = [&](int32_t units, int32_t first_heads, int32_t second_heads) {
    device.max_rope_units = units;
    int32_t heads = first_heads;
    for (Op& op : program.ops) {
      auto* attention = std::get_if<AttentionOp>(&op);
      if (attention != nullptr) attention->kv_heads = std::exchange(heads, second_heads);
    }
    return some_decode_limit(program, device);
  };
  EXPECT_EQ(limit_with(127, 8, 8), 15);
  EXPECT_EQ(limit_with(127, 8, 2), 15);
  EXPECT_EQ(limit_with(127, 2, 8), 15);
  EXPECT_EQ(limit_with(127, 2, 2), 63);
  EXPECT_EQ(limit_with(127, 1, 1), 64);
  EXPECT_EQ(limit_with(0, 8, 8), 0);
}

RC_GTEST_PROP(FewRows, RandomModelsGiveThePlainLogits, ()) {
  ModelConfig config = aligned(random_model());
  config.num_heads = config.num_kv_heads * *rc::gen::inRange(1, 4);
  const int size = *rc::gen::inRange(1, static_cast<int>(config.num_kv_heads) + 1);
  RC_ASSERT(distance(decode_logits({fuse(build(config))}, config),
                     decode_logits(lowered(config, size, true), config)) < kTolerance);
}

TEST(FewRows, DecodeOfALayerIsFiveOps) {
  const ModelConfig config = aligned(tiny_llama());
  const Program program = lower_few_rows(shard(fuse(build(config, DType::kBFloat16)), 0, 1).value(),
                                         few_rows_device(), true);
  std::string ops;
  for (const Op& op : program.ops) ops += std::string(op_name(op)) + " ";
  const std::string layer = "fused_linear rope_attention fused_linear fused_linear fused_linear ";
  EXPECT_EQ(ops, "prepare_inputs embed " + layer + layer + "fused_linear sample ")
      << print(program);
}

TEST(FewRows, RanksAddTheResidualInTheNextLinear) {
  const ModelConfig config = aligned(tiny_llama());
  const Program program = lower_few_rows(shard(fuse(build(config, DType::kBFloat16)), 0, 2).value(),
                                         few_rows_device(), true);
  int with_delta = 0;
  for (const Op& op : program.ops) {
    EXPECT_FALSE(std::holds_alternative<AddRmsNormOp>(op)) << print(program, op);
    const auto* fused = std::get_if<FusedLinearOp>(&op);
    if (fused == nullptr) continue;
    with_delta += fused->delta != kNoValue;
    EXPECT_EQ(fused->residual, kNoValue) << print(program, op);
  }
  EXPECT_EQ(with_delta, 4);  // gate_up, qkv, gate_up, lm_head
}

TEST(FewRows, SumsOverRanksGoFromLinearToLinear) {
  const ModelConfig config = aligned(tiny_llama());
  for (const int size : {2, 3}) {
    const Program program = lower_few_rows(
        shard(fuse(build(config, DType::kBFloat16)), 0, size).value(), few_rows_device(), true);
    int sums = 0;
    for (const Op& op : program.ops) sums += std::holds_alternative<AllReduceAddRmsNormOp>(op);
    EXPECT_EQ(sums, size == 2 ? 0 : 4) << print(program);  // two in each of two layers
    EXPECT_EQ(peer_sums(program).places, size == 2 ? 4 : 0);
    EXPECT_EQ(peer_sums(program).cols, size == 2 ? config.hidden_size : 0);
  }
}

// Ranks of unequal shares, some of which the kernels take and some not: all push, or none.
TEST(FewRows, RanksAgreeOnTheirSumsWhateverTheirShares) {
  for (const int64_t intermediate : {66, 72, 80}) {
    for (const int64_t head_dim : {4, 8, 10}) {
      ModelConfig config = aligned(tiny_llama());
      config.intermediate_size = intermediate;
      config.head_dim = head_dim;
      const auto places = [&](int rank) {
        return peer_sums(
                   lower_few_rows(shard(fuse(build(config, DType::kBFloat16)), rank, 2).value(),
                                  few_rows_device(), true))
            .places;
      };
      EXPECT_EQ(places(0), places(1)) << intermediate << " and heads of " << head_dim;
    }
  }
}

TEST(FewRows, KeepsTheIdsOfWeights) {
  const Program plain = *shard(fuse(build(aligned(tiny_qwen3()), DType::kBFloat16)), 1, 3);
  const Program program = lower_few_rows(plain, few_rows_device(), true);
  ASSERT_GE(program.values.size(), plain.values.size());
  for (size_t i = 0; i < plain.values.size(); ++i) {
    EXPECT_EQ(program.values[i].name, plain.values[i].name);
  }
}

// Attention that takes its own rows' keys reads no shares, and nobody makes them.
TEST(FewRows, OfOneTokenARequestSharesNoKeys) {
  const Program plain = add_key_shares(
      *shard(fuse(build(aligned(tiny_llama()), DType::kBFloat16)), 0, 1), {true}, 64);
  const auto shares = [](const Program& program) {
    return std::ranges::count_if(
        program.ops, [](const Op& op) { return std::holds_alternative<ShareKeysOp>(op); });
  };
  EXPECT_EQ(shares(plain), 1);
  EXPECT_EQ(shares(lower_few_rows(plain, few_rows_device(), false)), 1);
  EXPECT_EQ(shares(lower_few_rows(plain, few_rows_device(), true)), 0);
}

TEST(FewRows, LimitFollowsTheWidestNorm) {
  ModelConfig config = aligned(tiny_llama());
  const auto limit = [](const ModelConfig& c, DType dtype, const kernels::FewRows& rows,
                        int ranks = 1) {
    return few_rows_limit(shard(fuse(build(c, dtype)), 0, ranks).value(), rows);
  };
  EXPECT_EQ(limit(config, DType::kBFloat16, few_rows_device()), 3);
  EXPECT_EQ(limit(config, DType::kBFloat16, few_rows_device(), 2), 4);
  EXPECT_EQ(limit(config, DType::kFloat32, few_rows_device()), 0);
  EXPECT_EQ(limit(config, DType::kBFloat16, {}), 0);
  config.hidden_size = 8192;
  EXPECT_EQ(limit(config, DType::kBFloat16, few_rows_device()), 2);
  config.hidden_size = 16384;  // too wide for the fused norm, which then stays an op of its own
  EXPECT_EQ(limit(config, DType::kBFloat16, few_rows_device()), 3);
}

}  // namespace
}  // namespace refrain::worker::test
