// CG-18, CG-19 and the memory plan.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker::test {
namespace {

// Plain, fused or sharded.
Program random_program() {
  const ModelConfig config = random_model();
  Program program = build(config, *rc::gen::element(DType::kFloat32, DType::kBFloat16));
  if (*rc::gen::arbitrary<bool>()) program = fuse(std::move(program));
  const int size = *rc::gen::inRange(1, static_cast<int>(config.num_kv_heads) + 1);
  return *shard(program, *rc::gen::inRange(0, size), size);
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const OpDef* def : definitions()) names.emplace_back(def->name);
  return names;
}

int count_ops(const Program& program, const std::string& name) {
  return static_cast<int>(std::count_if(program.ops.begin(), program.ops.end(),
                                        [&](const Op& op) { return op_name(op) == name; }));
}

RC_GTEST_PROP(Split, CG18_CoversEveryOpInOrderWithoutEmptyPieces, ()) {
  const Program program = random_program();
  const std::vector<std::string> splitting =
      *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(op_names()));
  const auto pieces = split_program(program, splitting);
  RC_ASSERT(pieces.has_value());
  int at = 0, index = 0;
  for (const PieceRange& piece : *pieces) {
    RC_ASSERT(piece.ops.begin == at);
    RC_ASSERT(piece.ops.end > piece.ops.begin);
    RC_ASSERT(piece.index == index++);
    for (int i = piece.ops.begin; i < piece.ops.end; ++i) {
      const char* name = op_name(program.ops[static_cast<size_t>(i)]);
      const bool splits = std::find(splitting.begin(), splitting.end(), name) != splitting.end();
      RC_ASSERT(splits == piece.splitting);
      RC_ASSERT(!splits || piece.ops.end - piece.ops.begin == 1);
    }
    at = piece.ops.end;
  }
  RC_ASSERT(at == static_cast<int>(program.ops.size()));
}

RC_GTEST_PROP(Split, CG18_LayersPlusOneGraphs, ()) {
  const Program program = random_program();
  const auto pieces = split_program(program, default_splitting_ops());
  const auto graphs = std::count_if(pieces->begin(), pieces->end(),
                                    [](const PieceRange& piece) { return !piece.splitting; });
  RC_ASSERT(graphs == count_ops(program, "attention") + 1);
}

TEST(Split, CG20_TheLastPieceIsOfRequestsWhereTheirRowsAreTakenRightBehindAttention) {
  for (const bool fused : {false, true}) {
    const Program plain = build(tiny_llama());
    const auto pieces = split_program(fused ? fuse(plain) : plain, default_splitting_ops());
    for (const PieceRange& piece : *pieces)
      EXPECT_EQ(piece.of_requests, fused && piece.index == pieces->back().index) << piece.index;
  }
}

RC_GTEST_PROP(Split, CG18_APieceReadsOnlyWhatEarlierPiecesGive, ()) {
  const Program program = random_program();
  const auto pieces = split_program(program, default_splitting_ops());
  std::vector<bool> given(program.values.size(), false);
  for (const PieceRange& piece : *pieces) {
    for (const ValueId id : piece.inputs) RC_ASSERT(given[static_cast<size_t>(id)]);
    for (const ValueId id : piece.outputs) given[static_cast<size_t>(id)] = true;
  }
}

TEST(Split, CG19_AnUnknownSplittingOpIsAnErrorThatListsThem) {
  const auto pieces = split_program(fuse(build(tiny_llama())), {"attention", "atention"});
  ASSERT_FALSE(pieces.has_value());
  EXPECT_NE(pieces.error().message.find("atention"), std::string::npos);
  EXPECT_NE(pieces.error().message.find("rope_kv_write"), std::string::npos);
}

TEST(Split, CG19_AnEmptyListMeansNotSplittable) {
  const Program program = fuse(build(tiny_llama()));
  EXPECT_TRUE(is_splittable(program, default_splitting_ops()));
  EXPECT_FALSE(is_splittable(program, {}));
  EXPECT_EQ(split_program(program, {})->size(), 1U);
}

int64_t bytes_of(const Value& value, int64_t tokens, int64_t requests) {
  return value.rows.resolve({tokens, requests}) * value.cols *
         static_cast<int64_t>(size_of(value.dtype));
}

// Two values that are alive after one op and share bytes of the arena, found by walking the ops and
// not by the plan's own reckoning. In-place pairs hand over at their op.
std::optional<std::pair<std::string, std::string>> find_overlap(const Program& program,
                                                                const MemoryPlan& plan,
                                                                int64_t tokens, int64_t requests) {
  const int num_ops = static_cast<int>(program.ops.size());
  std::vector<int> first(program.values.size(), num_ops), last(program.values.size(), -1);
  for (int i = 0; i < num_ops; ++i) {
    const Op& op = program.ops[static_cast<size_t>(i)];
    for (const ValueId id : writes(op)) first[static_cast<size_t>(id)] = i;
    for (const ValueId id : reads(op)) last[static_cast<size_t>(id)] = i;
    for (const ValueId id : writes(op))
      last[static_cast<size_t>(id)] = std::max(last[static_cast<size_t>(id)], i);
  }
  const auto hand_over = [&](ValueId a, ValueId b) {
    for (const Op& op : program.ops)
      for (const InPlace& pair : in_place(op))
        if ((pair.from == a && pair.to == b) || (pair.from == b && pair.to == a)) return true;
    return false;
  };
  for (size_t a = 0; a < program.values.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      if (plan.offsets[a] < 0 || plan.offsets[b] < 0) continue;
      const bool outputs = program.values[a].kind == ValueKind::kOutput ||
                           program.values[b].kind == ValueKind::kOutput;
      const bool together = outputs || (first[a] <= last[b] && first[b] <= last[a]);
      const bool share =
          plan.offsets[a] < plan.offsets[b] + bytes_of(program.values[b], tokens, requests) &&
          plan.offsets[b] < plan.offsets[a] + bytes_of(program.values[a], tokens, requests);
      if (together && share && !hand_over(static_cast<ValueId>(a), static_cast<ValueId>(b)))
        return std::pair(program.values[a].name, program.values[b].name);
    }
  return std::nullopt;
}

RC_GTEST_PROP(PlanMemory, NeverOverlapsLiveValuesAndNeverNeedsMoreThanNoReuse, ()) {
  const Program program = random_program();
  const int64_t tokens = *rc::gen::inRange(1, 600);
  const int64_t requests = *rc::gen::inRange<int64_t>(1, tokens + 1);
  const MemoryPlan plan = plan_memory(program, {tokens, requests});
  RC_ASSERT(!find_overlap(program, plan, tokens, requests).has_value());
  RC_ASSERT(plan.bytes <= plan.bytes_without_reuse);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    const bool in_arena = value.storage == worker::Storage::kArena;
    RC_ASSERT((plan.offsets[i] >= 0) == in_arena);
    if (!in_arena) continue;
    RC_ASSERT(plan.offsets[i] % 256 == 0);
    RC_ASSERT(plan.offsets[i] + bytes_of(value, tokens, requests) <=
              static_cast<int64_t>(plan.bytes));
  }
  for (const Op& op : program.ops)
    for (const InPlace& pair : in_place(op))
      RC_ASSERT(plan.offsets[static_cast<size_t>(pair.from)] ==
                plan.offsets[static_cast<size_t>(pair.to)]);
}

TEST(PlanMemory, TheCheckForOverlapsSeesOne) {
  const Program program = fuse(build(tiny_llama()));
  MemoryPlan plan = plan_memory(program, {8, 4});
  for (int64_t& offset : plan.offsets)
    if (offset >= 0) offset = 0;
  EXPECT_TRUE(find_overlap(program, plan, 8, 4).has_value());
}

TEST(PlanMemory, IsSmallComparedWithNoReuse) {
  ModelConfig config = tiny_llama();
  config.num_layers = 30;
  const MemoryPlan plan = plan_memory(fuse(build(config)), {512, 16});
  EXPECT_LT(plan.bytes * 10, plan.bytes_without_reuse);
}

}  // namespace
}  // namespace refrain::worker::test
