#include <algorithm>

#include "kernels/core/op_args.h"
#include "worker/program/passes/best_tokens.h"
#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

// Tensor parallelism: first every weight is narrowed to the rank's share, then the widths of the
// activations follow from the weights, then the collectives go in.

namespace refrain::worker {
namespace {

constexpr int64_t kIntermediateUnit = 16;  // columns of an MLP that stay together
constexpr int64_t kVocabUnit = 64;         // rows of a vocabulary shard are a multiple of it

struct Share {
  int64_t begin = 0, end = 0;
  int64_t pad = 0;
  int64_t size() const { return end - begin; }
};

// What is divided, and this rank's part of it.
struct Split {
  int rank = 0, size = 1;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;

  int64_t queries_per_kv() const { return kv_heads == 0 ? 1 : q_heads / kv_heads; }
  UnitRange kv_groups() const { return kv_share(kv_heads, rank, size); }
  // Of the query heads: all of its KV heads, or its part of those of one that several ranks have.
  UnitRange queries() const {
    const UnitRange kv = kv_groups();
    const int64_t first = kv.begin * queries_per_kv();
    if (kv_heads == 0 || size <= kv_heads) return {first, kv.end * queries_per_kv()};
    const UnitRange ranks =
        rank_share(size, static_cast<int>(kv.begin), static_cast<int>(kv_heads));
    const UnitRange part = rank_share(queries_per_kv(), rank - static_cast<int>(ranks.begin),
                                      static_cast<int>(ranks.end - ranks.begin));
    return {first + part.begin, first + part.end};
  }
  int64_t vocab_shard() const {
    return (vocab + size * kVocabUnit - 1) / (size * kVocabUnit) * kVocabUnit;
  }

  Share share(SplitUnit unit, int64_t full) const {
    switch (unit) {
      case SplitUnit::kQueryHeads:
        return {queries().begin * head_dim, queries().end * head_dim};
      case SplitUnit::kKvHeads:
        return {kv_groups().begin * head_dim, kv_groups().end * head_dim};
      case SplitUnit::kIntermediate: {
        const int64_t units = (full + kIntermediateUnit - 1) / kIntermediateUnit;
        const UnitRange range = rank_share(units, rank, size);
        return {std::min(full, range.begin * kIntermediateUnit),
                std::min(full, range.end * kIntermediateUnit)};
      }
      case SplitUnit::kVocab: {
        Share share{std::min(full, rank * vocab_shard()),
                    std::min(full, (rank + 1) * vocab_shard())};
        share.pad = vocab_shard() - share.size();
        return share;
      }
      case SplitUnit::kNone:
        break;
    }
    return {0, full};
  }
};

Result<Split> find_split(const Program& program, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    return fail_field("tensor_parallel_size", "rank {} of {} tensor-parallel ranks does not exist",
                      rank, size);
  if (program.tensor_parallel_size != 1)
    return fail(ErrorCode::kInternal, "program {} is sharded already", program.name);
  Split split{.rank = rank, .size = size, .vocab = program.vocab_size};
  for (const Op& op : program.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op)) {
      if (split.kv_heads != 0 &&
          (split.kv_heads != attention->kv_heads || split.q_heads != attention->q_heads ||
           split.head_dim != attention->head_dim))
        return fail(ErrorCode::kInvalidArgument,
                    "attention layer {} has other heads than the layers before it: such a model "
                    "cannot be spread over ranks",
                    attention->layer);
      split.q_heads = attention->q_heads;
      split.kv_heads = attention->kv_heads;
      split.head_dim = attention->head_dim;
    }
    const auto* linear = std::get_if<LinearOp>(&op);
    if (linear != nullptr && linear->parallel == Parallel::kRow &&
        linear->unit == SplitUnit::kIntermediate)
      split.intermediate = program.value(linear->weight).cols;
  }
  if (split.kv_heads != 0 && split.q_heads < size)
    return fail_field("tensor_parallel_size",
                      "tensor_parallel_size {} is more than num_attention_heads {}: every rank "
                      "needs a head, so use {} or fewer",
                      size, split.q_heads, split.q_heads);
  const int64_t units = (split.intermediate + kIntermediateUnit - 1) / kIntermediateUnit;
  if (split.intermediate != 0 && units < size)
    return fail_field("tensor_parallel_size",
                      "tensor_parallel_size {} is too much for intermediate_size {}: it divides in "
                      "{} blocks of {} columns, so use {} or fewer",
                      size, split.intermediate, units, kIntermediateUnit, units);
  return split;
}

// Narrows the rows of every part that has a unit; `rows` of the value follow.
void narrow_rows(Value& value, const Split& split) {
  if (value.parts.empty()) return;
  value.rows = Dim::constant(0);
  for (WeightPart& part : value.parts) {
    const Share share = split.share(part.unit, part.tensor_rows);
    part.row_begin = share.begin;
    part.row_end = share.end;
    part.pad_rows = share.pad;
    value.rows.scale += share.size() + share.pad;
  }
}

void narrow_cols(Value& value, SplitUnit unit, const Split& split) {
  for (WeightPart& part : value.parts) {
    const Share share = split.share(unit, part.tensor_cols);
    part.col_begin = share.begin;
    part.col_end = share.end;
    value.cols = share.size();
  }
}

// Sets this rank's heads and vocabulary rows in an op, and the widths of what it defines.
struct Resize {
  Program& program;
  const Split& split;

  Value& value(ValueId id) const { return program.values[static_cast<size_t>(id)]; }
  int64_t kv_heads() const { return split.kv_groups().end - split.kv_groups().begin; }
  int64_t q_heads() const { return split.queries().end - split.queries().begin; }
  void same_width(ValueId out, ValueId in) const { value(out).cols = value(in).cols; }

  void operator()(EmbedOp& op) const {
    const Share share = split.share(SplitUnit::kVocab, split.vocab);
    op.vocab_begin = share.begin;
    op.vocab_end = share.end;
  }
  void operator()(RmsNormOp& op) const { same_width(op.out, op.in); }
  void operator()(LinearOp& op) const {
    value(op.out).cols = value(op.weight).rows.scale;
    if (op.parallel != Parallel::kRow || split.rank == 0) return;
    op.bias = kNoValue;  // added once, by rank 0
    op.residual = kNoValue;
  }
  void operator()(SiluGateOp& op) const { same_width(op.out, op.gate); }
  void operator()(SiluMulOp& op) const { value(op.out).cols = value(op.in).cols / 2; }
  void operator()(RopeOp& op) const {
    same_width(op.out, op.in);
    op.heads = value(op.in).cols / op.head_dim;
  }
  void operator()(KvWriteOp& op) const { op.kv_heads = kv_heads(); }
  void operator()(RopeKvWriteOp& op) const {
    op.q_heads = q_heads();
    op.kv_heads = kv_heads();
    same_width(op.out, op.qkv);
  }
  void operator()(AttentionOp& op) const {
    op.q_heads = q_heads();
    op.kv_heads = kv_heads();
    const UnitRange most = kv_share(split.kv_heads, 0, split.size);
    op.most_kv_heads = most.end - most.begin;
    value(op.out).cols = op.q_heads * op.head_dim;
  }
  void operator()(LinearRecurrenceOp& op) const { same_width(op.out, op.in); }
  void operator()(SelectRowsOp& op) const { same_width(op.out, op.in); }
  template <class T>
  void operator()(T&) const {}
};

// What this rank keeps of each state group, and the widths of the states.
void narrow_states(Program& program, const Split& split) {
  for (StateGroup& group : program.states) {
    for (PagedPart& part : group.paged.parts) {
      if (part.split == SplitUnit::kNone) continue;
      const UnitRange units = part.split == SplitUnit::kKvHeads
                                  ? split.kv_groups()
                                  : rank_share(part.units, split.rank, split.size);
      part.units = units.end - units.begin;
      part.first_unit = units.begin;
    }
    group.slot.elements = split.share(group.slot.split, group.slot.elements).size();
  }
  for (Value& value : program.values) {
    if (value.kind != ValueKind::kState || value.group < 0) continue;
    const StateGroup& group = program.group_of(value);
    value.cols = value.is_paged() ? group.paged.cols() : group.slot.cols();
  }
}

// The value an op leaves as this rank's part of a sum; null for other ops.
ValueId* partial_sum(Op& op) {
  if (auto* embed = std::get_if<EmbedOp>(&op)) return &embed->out;
  auto* linear = std::get_if<LinearOp>(&op);
  return linear != nullptr && linear->parallel == Parallel::kRow ? &linear->out : nullptr;
}

// A value like `like` that this rank computes before the exchange, as an activation.
ValueId local_value(Program& program, ValueId like, const char* suffix) {
  Value local = program.value(like);
  local.name += suffix;
  local.kind = ValueKind::kActivation;
  return add_value(program, std::move(local));
}

BestTokensOp best_tokens(const Program& program, const SampleOp& sample, ValueId logits,
                         ValueId best) {
  const int64_t vocab = sample.vocab_size, cols = program.value(logits).cols;
  const int64_t first = std::min(vocab, program.rank * cols);
  return {.logits = logits,
          .row_slot = sample.row_slot,
          .row_flags = sample.row_flags,
          .params = sample.params,
          .best = best,
          .first_token = first,
          .num_tokens = std::min(cols, vocab - first)};
}

// Greedy tokens follow from the best of each rank's shard, so that the logits are gathered only
// where a row asks for more.
void insert_collectives(Program& program, int size) {
  std::vector<Op> ops;
  ValueId logits_shard = kNoValue, gathered_logits = kNoValue;
  const ValueId live_logits = live_logits_of(program);
  for (Op op : std::vector<Op>(program.ops)) {
    if (ValueId* out = partial_sum(op)) {
      const ValueId sum = *out;
      const ValueId part = *out = local_value(program, sum, ".partial");
      ops.push_back(op);
      ops.emplace_back(AllReduceOp{.value = part, .out = sum});
      continue;
    }
    auto* linear = std::get_if<LinearOp>(&op);
    if (linear != nullptr && linear->parallel == Parallel::kVocab) {
      const ValueId gathered = linear->out;
      const ValueId shard = linear->out = local_value(program, gathered, ".shard");
      program.values[static_cast<size_t>(gathered)].rows.scale *= size;
      ops.push_back(op);
      ops.emplace_back(AllGatherOp{.in = shard, .live = live_logits, .out = gathered});
      logits_shard = shard;
      gathered_logits = gathered;
      continue;
    }
    // Logits that every rank has whole are sampled as by one rank.
    auto* sample = std::get_if<SampleOp>(&op);
    if (sample != nullptr && sample->logits == gathered_logits) {
      const ValueId best =
          add_best(program, sample->logits, sample->row_slot, ".best", 1, kernels::kBestParts);
      ops.emplace_back(best_tokens(program, *sample, logits_shard, best));
      sample->shards = size;
      sample->best = add_best(program, sample->logits, sample->row_slot, ".best.gathered", size,
                              kernels::kBestParts);
      ops.emplace_back(AllGatherOp{.in = best, .out = sample->best});
    }
    ops.push_back(op);
  }
  program.ops = std::move(ops);
}

// Sums that only a residual addition with RMSNorm reads go into it.
void fuse_sums(Program& program) {
  const Uses uses(program);
  std::vector<bool> remove(program.ops.size(), false);
  for (Op& op : program.ops) {
    const auto* add = std::get_if<AddRmsNormOp>(&op);
    if (add == nullptr || !uses.used_once(add->delta)) continue;
    const auto* sum = def_as<AllReduceOp>(program, uses, add->delta);
    if (sum == nullptr || program.value(add->delta).kind != ValueKind::kActivation) continue;
    remove[static_cast<size_t>(uses.def(add->delta))] = true;
    op = AllReduceAddRmsNormOp{.residual = add->residual,
                               .delta = sum->value,
                               .weight = add->weight,
                               .residual_out = add->residual_out,
                               .out = add->out,
                               .eps = add->eps};
  }
  compact(program, remove);
}

// How a weight is used decides what is narrowed: rows by its parts' units, columns by a
// row-parallel Linear. A tied table is used twice, alike.
void narrow_weights(Program& program, const Split& split) {
  std::vector<bool> narrowed(program.values.size(), false);
  for (const Op& op : program.ops) {
    for (const ValueId id : reads(op)) {
      Value& value = program.values[static_cast<size_t>(id)];
      if (value.kind != ValueKind::kWeight || narrowed[static_cast<size_t>(id)]) continue;
      narrowed[static_cast<size_t>(id)] = true;
      const auto* linear = std::get_if<LinearOp>(&op);
      if (linear != nullptr && linear->parallel == Parallel::kRow && linear->weight == id)
        narrow_cols(value, linear->unit, split);
      else
        narrow_rows(value, split);
    }
  }
}

}  // namespace

UnitRange rank_share(int64_t units, int rank, int size) {
  const int64_t each = units / size, more = units % size;
  const int64_t begin = rank * each + std::min<int64_t>(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

UnitRange kv_share(int64_t kv_heads, int rank, int size) {
  if (kv_heads == 0 || size <= kv_heads) return rank_share(kv_heads, rank, size);
  for (int head = 0;; ++head)
    if (rank < rank_share(size, head, static_cast<int>(kv_heads)).end) return {head, head + 1};
}

Result<Program> shard(const Program& program, int rank, int size) {
  REFRAIN_ASSIGN_OR_RETURN(const Split split, find_split(program, rank, size));
  Program sharded = program;
  if (size == 1) return sharded;
  sharded.tensor_parallel_size = size;
  sharded.rank = rank;
  narrow_weights(sharded, split);
  const Resize resize{sharded, split};
  for (Op& op : sharded.ops) std::visit(resize, op);
  narrow_states(sharded, split);
  insert_collectives(sharded, size);
  fuse_sums(sharded);
  return sharded;
}

}  // namespace refrain::worker
