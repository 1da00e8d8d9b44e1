#include <algorithm>
#include <array>

#include "worker/program/passes/best_tokens.h"
#include "worker/program/passes/passes.h"
#include "worker/program/passes/rewrite.h"

// Lowering for few rows. Rewritten values are never in place: the sum of residual and delta goes to
// memory of its own, because every block of a launch reads the old one.

namespace refrain::worker {
namespace {

bool can_fuse(const Program& program, const LinearOp& linear) {
  return is_bf16(program, linear.in) && is_bf16(program, linear.weight) &&
         program.value(linear.weight).cols % 8 == 0;
}

class FewRowsRewriter {
 public:
  FewRowsRewriter(Program program, const kernels::FewRows& device)
      : program_(std::move(program)), device_(device), sums_between_(can_sum_between()) {}

  // linear -> add_rms_norm becomes linear with residual -> rms_norm.
  void add_residuals() {
    const Uses uses(program_);
    for (Op& op : program_.ops) {
      const auto* add = std::get_if<AddRmsNormOp>(&op);
      if (add == nullptr || !uses.used_once(add->delta)) continue;
      const int def = uses.def(add->delta);
      auto* linear = def < 0 ? nullptr : std::get_if<LinearOp>(&at(def));
      if (linear == nullptr || linear->residual != kNoValue || !can_fuse(program_, *linear) ||
          uses.def(add->residual) > def) {
        continue;
      }
      linear->residual = add->residual;
      linear->out = add->residual_out;
      op = RmsNormOp{
          .in = add->residual_out, .weight = add->weight, .out = add->out, .eps = add->eps};
    }
  }

  // [add_]rms_norm -> linear -> silu_mul becomes fused_linear, and so does a linear alone.
  void fuse_linears() {
    fuse_each(true, [this](const Uses& uses, FusedLinearOp& whole) {
      return std::array{take_norm(uses, whole), take_silu(uses, whole)};
    });
  }

  // linear -> silu_mul becomes fused_linear, where its kernel without a norm takes the shape; with
  // `norms` a folded norm before it goes in, too. Said of the whole tensors, so that every rank
  // says the same: shares are of 16 columns each.
  void fuse_some(bool norms) {
    fuse_each(false, [this, norms](const Uses& uses, FusedLinearOp& whole) {
      const bool takes = has_whole_atoms(program_, whole.weight);
      return std::array{takes && norms ? take_folded_norm(uses, whole) : -1,
                        takes && has_whole_blocks(whole.weight) ? take_silu(uses, whole) : -1};
    });
  }

  // lora_shrink -> linear -> lora_expand [-> silu_mul] becomes lora_linear. All ranks say the same:
  // where a tensor's columns are shared, the shares are equal.
  void fuse_adapters() {
    const Uses uses(program_);
    std::vector<bool> remove(program_.ops.size(), false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const auto* expand = std::get_if<LoraExpandOp>(&program_.ops[i]);
      if (expand == nullptr) continue;
      const auto* linear = def_as<LinearOp>(program_, uses, expand->value);
      const auto* shrink = def_as<LoraShrinkOp>(program_, uses, expand->in);
      if (linear == nullptr || shrink == nullptr || !takes_adapters(*linear, *expand)) continue;
      LoraLinearOp fused{.in = linear->in,
                         .weight = linear->weight,
                         .bias = linear->bias,
                         .residual = linear->residual,
                         .a = shrink->a,
                         .b = expand->b,
                         .out = expand->out,
                         .of = expand->of,
                         .part_end = expand->part_end};
      const int silu = has_whole_blocks(linear->weight) ? take_silu(uses, fused) : -1;
      if (silu < 0 && !has_whole_tiles(linear->weight, linear->parallel)) continue;
      if (silu >= 0) remove[static_cast<size_t>(silu)] = true;
      remove[static_cast<size_t>(uses.def(expand->value))] = true;
      remove[static_cast<size_t>(uses.def(expand->in))] = true;
      Value spread = program_.value(shrink->out);
      spread.name += ".spread";
      spread.dtype = DType::kBFloat16;
      spread.cols *= program_.value(expand->of.ranks).rows.scale;
      fused.shrunk = add_value(program_, std::move(spread));
      program_.ops[i] = fused;
    }
    drop(remove);
  }

  void fuse_attention() {
    const Uses uses(program_);
    std::vector<bool> remove(program_.ops.size(), false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const auto* attention = std::get_if<AttentionOp>(&program_.ops[i]);
      if (attention == nullptr || !uses.used_once(attention->q)) continue;
      const int def = uses.def(attention->q);
      const auto* rope = def < 0 ? nullptr : std::get_if<RopeKvWriteOp>(&at(def));
      if (rope == nullptr || rope->cache != attention->cache || !takes(*rope)) continue;
      RopeAttentionOp fused{*rope, *attention};
      fused.rope.out = fused.attention.q = fused.attention.cache = kNoValue;
      fused.attention.shares = kNoValue;
      program_.ops[i] = fused;
      remove[static_cast<size_t>(def)] = true;
    }
    drop(remove);
    drop_unread_shares();
  }

  // all_reduce_add_rms_norm comes apart where sums go from linear to linear.
  void split_sums() {
    if (!sums_between_) return;
    std::vector<Op> ops;
    for (const Op& op : program_.ops) {
      const auto* sum = std::get_if<AllReduceAddRmsNormOp>(&op);
      if (sum == nullptr) {
        ops.push_back(op);
        continue;
      }
      const ValueId whole = add_value(program_, program_.value(sum->delta));
      ops.push_back(AllReduceOp{.value = sum->delta, .out = whole});
      ops.push_back(AddRmsNormOp{.residual = sum->residual,
                                 .delta = whole,
                                 .weight = sum->weight,
                                 .residual_out = sum->residual_out,
                                 .out = sum->out,
                                 .eps = sum->eps});
    }
    program_.ops = std::move(ops);
  }

  // fused_linear -> all_reduce -> delta of the next becomes a push and a pull.
  void fuse_sums() {
    if (!sums_between_) return;
    const Uses uses(program_);
    std::vector<bool> remove(program_.ops.size(), false);
    int32_t place = 0;
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const auto* sum = std::get_if<AllReduceOp>(&program_.ops[i]);
      if (sum == nullptr || uses.def(sum->value) < 0 || !uses.used_once(sum->out)) continue;
      auto* from = std::get_if<FusedLinearOp>(&at(uses.def(sum->value)));
      auto* to = std::get_if<FusedLinearOp>(&at(uses.users(sum->out).front()));
      if (from == nullptr || to == nullptr || to->delta != sum->out || from->norm != kNoValue ||
          from->silu_mul || from->residual != kNoValue || !is_bf16(program_, from->out) ||
          program_.value(from->out).cols % 4 != 0) {
        continue;
      }
      from->push = to->pull = place++;
      to->delta = from->out;
      remove[i] = true;
    }
    drop(remove);
  }

  // With one token a request, row r of the tokens is row r of the requests. Speculation has logit
  // rows of their own, and keeps its selects.
  void drop_selects() {
    if (accept_op(program_) != nullptr) return;
    std::vector<ValueId> same(program_.values.size());
    for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<ValueId>(i);
    std::vector<bool> remove(program_.ops.size(), false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      visit_operands(program_.ops[i], [&same](ValueId& id, const Operand& operand) {
        if (id != kNoValue && operand.access == Access::kRead) id = same[static_cast<size_t>(id)];
      });
      const auto* select = std::get_if<SelectRowsOp>(&program_.ops[i]);
      if (select == nullptr) continue;
      same[static_cast<size_t>(select->out)] = select->in;
      remove[i] = true;
    }
    drop(remove);
    for (Value& value : program_.values) {
      if (value.rows.extent == kTokens) value.rows.extent = kRequests;
    }
  }

  Program take() { return std::move(program_); }

 private:
  // Every rank must say the same, whatever its share: a head group, or blocks of 16 columns and
  // what is left of the whole, in units that can_fuse() takes.
  bool can_sum_between() const {
    if (program_.tensor_parallel_size > device_.max_ranks) return false;
    return std::all_of(program_.ops.begin(), program_.ops.end(), [this](const Op& op) {
      if (const auto* attention = std::get_if<AttentionOp>(&op)) {
        return attention->q_heads / attention->kv_heads * attention->head_dim % 8 == 0;
      }
      const auto* linear = std::get_if<LinearOp>(&op);
      return linear == nullptr || linear->parallel != Parallel::kRow ||
             program_.value(linear->weight).parts.front().tensor_cols % 8 == 0;
    });
  }

  // Linears become fused_linears with the ops that `take` says they take over (-1: none), which are
  // gone then; `alone`: those without any, too.
  template <class Take>
  void fuse_each(bool alone, Take take) {
    const Uses uses(program_);
    std::vector<bool> remove(program_.ops.size(), false);
    for (Op& op : program_.ops) {
      const auto* linear = std::get_if<LinearOp>(&op);
      if (linear == nullptr || !can_fuse(program_, *linear)) continue;
      FusedLinearOp whole = fused(*linear);
      bool fuses = alone;
      for (const int taken : take(uses, whole)) {
        if (taken < 0) continue;
        remove[static_cast<size_t>(taken)] = true;
        fuses = true;
      }
      if (fuses) op = whole;
    }
    drop(remove);
  }

  static void put(const RmsNormOp& norm, FusedLinearOp& fused) {
    fused.norm = norm.weight;
    fused.eps = norm.eps;
    fused.in = norm.in;
  }

  Op& at(int index) { return program_.ops[static_cast<size_t>(index)]; }

  // The op whose work the linear takes over; -1: none.
  int take_norm(const Uses& uses, FusedLinearOp& fused) {
    const int def = uses.def(fused.in);
    if (def < 0 || !uses.used_once(fused.in) ||
        program_.value(fused.in).cols > device_.max_norm_cols) {
      return -1;
    }
    if (const auto* norm = std::get_if<RmsNormOp>(&at(def)); norm != nullptr && norm->group == 0) {
      put(*norm, fused);
      return def;
    }
    if (const auto* norm = std::get_if<AddRmsNormOp>(&at(def))) {
      fused.norm = norm->weight;
      fused.eps = norm->eps;
      fused.in = norm->residual;
      fused.delta = norm->delta;
      fused.sum_out = norm->residual_out;
      return def;
    }
    return -1;
  }

  int take_folded_norm(const Uses& uses, FusedLinearOp& fused) const {
    const auto* norm = def_as<RmsNormOp>(program_, uses, fused.in);
    if (norm == nullptr || program_.value(fused.weight).norm != norm->weight) return -1;
    const int def = uses.def(fused.in);
    put(*norm, fused);
    fused.unit_norm = true;
    return def;
  }

  template <class Fused>
  int take_silu(const Uses& uses, Fused& fused) {
    if (!uses.used_once(fused.out) || fused.bias != kNoValue || fused.residual != kNoValue) {
      return -1;
    }
    const int user = uses.users(fused.out).front();
    const auto* silu = std::get_if<SiluMulOp>(&at(user));
    if (silu == nullptr || program_.value(silu->out).cols % 8 != 0) return -1;
    fused.out = silu->out;
    fused.silu_mul = true;
    return user;
  }

  // Of 16 outputs, as SiLU·mul in a linear takes them.
  bool has_whole_blocks(ValueId weight) const {
    return std::ranges::all_of(program_.value(weight).parts,
                               [](const auto& part) { return part.tensor_rows % 16 == 0; });
  }
  bool takes_adapters(const LinearOp& linear, const LoraExpandOp& expand) const {
    const int32_t max_rank = expand.of.max_rank;
    return can_fuse(program_, linear) && is_bf16(program_, expand.out) &&
           has_whole_atoms(program_, linear.weight) &&
           has_equal_shares(program_, linear.weight, linear.parallel) && max_rank % 8 == 0 &&
           program_.value(expand.of.ranks).rows.scale * max_rank <= device_.max_lora_cols;
  }
  // Of 64 outputs, alike on all ranks.
  bool has_whole_tiles(ValueId weight, Parallel parallel) const {
    const int64_t shares = parallel == Parallel::kColumn ? program_.tensor_parallel_size : 1;
    return std::ranges::all_of(program_.value(weight).parts, [shares](const WeightPart& part) {
      return (part.row_end - part.row_begin) * shares == part.tensor_rows &&
             part.tensor_rows % (64 * shares) == 0;
    });
  }

  bool takes(const RopeKvWriteOp& rope) const {
    return is_bf16(program_, rope.qkv) && is_bf16(program_, rope.cache) &&
           rope.q_heads % rope.kv_heads == 0 && rope.q_heads / rope.kv_heads <= device_.max_group &&
           device_.takes_head_dim(rope.head_dim, rope.rotary_dim);
  }

  void drop_unread_shares() {
    const Uses uses(program_);
    std::vector<bool> remove(program_.ops.size(), false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const auto* shares = std::get_if<ShareKeysOp>(&program_.ops[i]);
      remove[i] = shares != nullptr && uses.users(shares->out).empty();
    }
    drop(remove);
  }

  void drop(const std::vector<bool>& remove) { drop_ops(program_, remove); }

  Program program_;
  const kernels::FewRows& device_;
  const bool sums_between_;
};

}  // namespace

Program lower_few_rows(Program program, const kernels::FewRows& device, bool decode) {
  FewRowsRewriter rewriter(std::move(program), device);
  if (decode) rewriter.drop_selects();
  rewriter.split_sums();
  rewriter.add_residuals();
  rewriter.fuse_linears();
  rewriter.fuse_sums();
  if (decode) rewriter.fuse_attention();
  return rewriter.take();
}

Program add_residuals(Program program) {
  FewRowsRewriter rewriter(std::move(program), {});
  rewriter.add_residuals();
  return rewriter.take();
}

Program lower_some_rows(Program program, const kernels::FewRows& device, int32_t rows,
                        bool decode) {
  const bool fuses_attention = decode && rows <= some_decode_limit(program, device);
  FewRowsRewriter rewriter(std::move(program), device);
  if (decode) {
    rewriter.drop_selects();
    rewriter.add_residuals();
  }
  rewriter.fuse_some(rows <= device.max_unit_norm_rows);
  if (fuses_attention) rewriter.fuse_attention();
  program = rewriter.take();
  if (rows <= device.max_plain_rows) program = send_sums(std::move(program));
  return rows > device.max_unit_norm_rows ? find_best(std::move(program), device) : program;
}

Program lower_lora_rows(Program program, const kernels::FewRows& device) {
  FewRowsRewriter rewriter(std::move(program), device);
  rewriter.fuse_adapters();
  return rewriter.take();
}

PeerSums peer_sums(const Program& program) {
  PeerSums sums;
  for (const Op& op : program.ops) {
    const auto* fused = std::get_if<FusedLinearOp>(&op);
    if (fused == nullptr || fused->push < 0) continue;
    sums.places = std::max(sums.places, fused->push + 1);
    sums.cols = std::max(sums.cols, program.value(fused->out).cols);
  }
  return sums;
}

int32_t some_decode_limit(const Program& program, const kernels::FewRows& device) {
  int64_t limit = device.max_plain_rows;
  for (const Op& op : program.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op))
      limit = std::min(
          limit, device.max_rope_units / std::max(attention->kv_heads, attention->most_kv_heads));
  }
  return static_cast<int32_t>(limit);
}

int32_t few_rows_limit(const Program& program, const kernels::FewRows& device) {
  int64_t limit = 0;
  for (const Op& op : program.ops) {
    const auto* linear = std::get_if<LinearOp>(&op);
    if (linear == nullptr || !can_fuse(program, *linear)) continue;
    limit = program.tensor_parallel_size == 1 ? device.max_rows_of_one : device.max_rows;
    break;
  }
  for (const Op& op : program.ops) {
    ValueId normed = kNoValue;
    if (const auto* norm = std::get_if<RmsNormOp>(&op)) normed = norm->out;
    if (const auto* norm = std::get_if<AddRmsNormOp>(&op)) normed = norm->out;
    if (const auto* norm = std::get_if<AllReduceAddRmsNormOp>(&op)) normed = norm->out;
    if (normed == kNoValue || program.value(normed).cols > device.max_norm_cols) continue;
    limit = std::min(limit, device.max_norm_elements / program.value(normed).cols);
  }
  return static_cast<int32_t>(limit);
}

}  // namespace refrain::worker
