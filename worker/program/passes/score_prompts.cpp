#include <algorithm>

#include "runtime/base/check.h"
#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

constexpr int64_t kMostRows = 64;

Value input(const char* name, int64_t rows) {
  return {.name = name,
          .kind = ValueKind::kInput,
          .dtype = DType::kInt32,
          .rows = Dim::constant(rows),
          .cols = 1,
          .storage = Storage::kPinned};
}

Value output(const char* name, DType dtype, int64_t rows, int64_t cols) {
  return {.name = name,
          .kind = ValueKind::kOutput,
          .dtype = dtype,
          .rows = Dim::constant(rows),
          .cols = cols,
          .storage = Storage::kPinned};
}

// A value like `id` of so many rows that lives no longer than it is used.
ValueId like(Program& program, ValueId id, int64_t rows) {
  Value value = program.value(id);
  value.name = "scored." + value.name;
  value.kind = ValueKind::kActivation;
  value.rows = Dim::constant(rows);
  return add_value(program, std::move(value));
}

}  // namespace

ScoringProgram score_prompts(Program program) {
  // The head: select_rows, the linear over the vocabulary, and where ranks share that, a gather.
  const auto head = std::ranges::find_if(program.ops, [](const Op& op) {
    const auto* linear = std::get_if<LinearOp>(&op);
    return linear != nullptr && linear->parallel == Parallel::kVocab;
  });
  REFRAIN_CHECK(head != program.ops.begin() && head != program.ops.end(),
                "program {} has no head to score prompts with", program.name);
  const auto* select = std::get_if<SelectRowsOp>(&*(head - 1));
  LinearOp linear = std::get<LinearOp>(*head);
  REFRAIN_CHECK(select != nullptr && select->out == linear.in,
                "program {}: its head reads rows that nothing selects", program.name);
  const auto at = head - program.ops.begin() - 1;
  const bool gathers = std::holds_alternative<AllGatherOp>(*(head + 1));
  const ValueId hidden = select->in;

  ScoringProgram result;
  ScoringValues& scoring = result.values;
  const int64_t rows = std::min(kMostRows, program.max_sizes()[kTokens]);
  scoring.rows = static_cast<int32_t>(rows);
  scoring.index = add_value(program, input("scored.index", rows));
  scoring.tokens = add_value(program, input("scored.tokens", rows));
  scoring.num_top = add_value(program, input("scored.num_top", rows));
  scoring.logprobs = add_value(program, output("scored.logprobs", DType::kFloat32, rows, 1));
  scoring.ranks = add_value(program, output("scored.ranks", DType::kInt32, rows, 1));
  constexpr int64_t kTop = kernels::kMaxLogprobs;
  scoring.top_tokens = add_value(program, output("scored.top_tokens", DType::kInt32, rows, kTop));
  scoring.top_logprobs =
      add_value(program, output("scored.top_logprobs", DType::kFloat32, rows, kTop));

  std::vector<Op> chunk;
  const ValueId selected = like(program, linear.in, rows);
  chunk.emplace_back(SelectRowsOp{.in = hidden, .index = scoring.index, .out = selected});
  const ValueId shard = like(program, linear.out, rows);
  linear.in = selected;
  linear.out = shard;
  chunk.emplace_back(linear);
  ValueId logits = shard;
  if (gathers) {
    const ValueId gathered = like(program, shard, rows * program.tensor_parallel_size);
    chunk.emplace_back(AllGatherOp{.in = shard, .out = gathered});
    logits = gathered;
  }
  chunk.emplace_back(ScoreTokensOp{.logits = logits,
                                   .tokens = scoring.tokens,
                                   .num_top = scoring.num_top,
                                   .logprobs = scoring.logprobs,
                                   .ranks = scoring.ranks,
                                   .top_tokens = scoring.top_tokens,
                                   .top_logprobs = scoring.top_logprobs,
                                   .shards = gathers ? program.tensor_parallel_size : 1,
                                   .vocab_size = program.vocab_size});
  // The step's own logits are read by nobody after its last op: they need no place of their own.
  for (Value& value : program.values)
    if (value.kind == ValueKind::kOutput && value.storage == Storage::kArena)
      value.kind = ValueKind::kActivation;
  scoring.chunk = {static_cast<int>(at), static_cast<int>(at) + static_cast<int>(chunk.size())};
  program.ops.insert(program.ops.begin() + at, chunk.begin(), chunk.end());
  result.program = std::move(program);
  return result;
}

}  // namespace refrain::worker
