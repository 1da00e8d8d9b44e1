#include <algorithm>

#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

ShareKeysOp shares_for(const AttentionOp& attention) {
  return {.query_start = attention.query_start,
          .seq_lens = attention.seq_lens,
          .row_slot = attention.row_slot,
          .block_table = attention.block_table,
          .plan = attention.plan,
          .q_heads = attention.q_heads,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .sliding_window = attention.sliding_window};
}

// Where all that it reads has been written, and in front of what the model computes: what makes a
// step's inputs stays together (StepAudit).
size_t place_of(const Program& program, const ShareKeysOp& shares) {
  const std::vector<ValueId> needed = reads(Op(shares));
  size_t place = 0;
  for (size_t at = 0; at < program.ops.size(); ++at)
    visit_operands(program.ops[at], [&](ValueId id, const Operand& operand) {
      if (operand.writes() && std::ranges::find(needed, id) != needed.end()) place = at + 1;
    });
  const auto computes = [&](const Op& op) {
    return std::ranges::any_of(
        reads(op), [&](ValueId id) { return program.value(id).kind == ValueKind::kWeight; });
  };
  while (place < program.ops.size() && !computes(program.ops[place])) ++place;
  return place;
}

}  // namespace

Program add_key_shares(Program program, const std::vector<bool>& groups, int64_t ints) {
  std::vector<ShareKeysOp> all;
  for (Op& op : program.ops) {
    auto* attention = std::get_if<AttentionOp>(&op);
    if (attention == nullptr) continue;
    if (!groups[static_cast<size_t>(program.value(attention->cache).group)]) continue;
    ShareKeysOp wanted = shares_for(*attention);
    const auto same = std::ranges::find_if(all, [&](const ShareKeysOp& shares) {
      wanted.out = shares.out;
      return shares == wanted;
    });
    if (same == all.end()) {
      wanted.out = add_value(program, {.name = fmt::format("key_shares.{}", all.size()),
                                       .dtype = DType::kInt32,
                                       .rows = Dim::constant(ints),
                                       .cols = 1});
      all.push_back(wanted);
    }
    attention->shares = wanted.out;
  }
  std::multimap<size_t, Op> before;
  for (const ShareKeysOp& shares : all) before.emplace(place_of(program, shares), shares);
  insert_ops(program, before);
  return program;
}

}  // namespace refrain::worker
