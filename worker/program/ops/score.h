#pragma once
// How likely the tokens of prompts are, chunk by chunk of their rows.

#include "worker/program/op_def.h"

namespace refrain::worker {

struct ScoreTokensOp {  // logits: [shards][N][cols] float32, as in SampleOp
  ValueId logits = kNoValue, tokens = kNoValue, num_top = kNoValue;
  // What the host reads (kernels::ScoreOutputs).
  ValueId logprobs = kNoValue, ranks = kNoValue, top_tokens = kNoValue, top_logprobs = kNoValue;
  int64_t shards = 1, vocab_size = 0;
  bool operator==(const ScoreTokensOp&) const = default;
};

template <>
struct Definition<ScoreTokensOp> {
  using O = ScoreTokensOp;
  static constexpr const char* name = "score_tokens";
  static constexpr Operand operands[] = {read("logits", offsetof(O, logits)),
                                         read("tokens", offsetof(O, tokens)),
                                         read("num_top", offsetof(O, num_top)),
                                         write("logprobs", offsetof(O, logprobs)),
                                         write("ranks", offsetof(O, ranks)),
                                         write("top_tokens", offsetof(O, top_tokens)),
                                         write("top_logprobs", offsetof(O, top_logprobs))};
  static constexpr Attribute attributes[] = {shown<"shards", &O::shards>(),
                                             shown<"vocab_size", &O::vocab_size>()};
  static std::string shape(const Shapes& v, const O& op) {
    return expect(v[op.logits].dtype == DType::kFloat32 && op.shards > 0 &&
                      v[op.logits].rows.extent == v[op.tokens].rows.extent &&
                      v[op.logits].rows.scale == v[op.tokens].rows.scale * op.shards &&
                      v[op.logits].cols * op.shards >= op.vocab_size &&
                      v.same_rows(op.tokens, op.num_top) && v.same_rows(op.tokens, op.logprobs) &&
                      v.same_rows(op.tokens, op.ranks) && v.same_rows(op.tokens, op.top_tokens) &&
                      v.same_rows(op.tokens, op.top_logprobs) &&
                      v[op.top_tokens].cols == kernels::kMaxLogprobs &&
                      v[op.top_logprobs].cols == kernels::kMaxLogprobs,
                  "shards, logits, tokens and outputs disagree");
  }
  static bool has_kernel(const kernels::KernelTable& table, const O& /*op*/) {
    return table.score_tokens != nullptr;
  }
  template <class L>
  static void launch(const L& l, const O& op) {
    kernels::ScoreTokensArgs args;
    args.rows = l.rows(op.tokens).padded;
    args.logits = l.at(op.logits);
    args.shards = static_cast<int32_t>(op.shards);
    args.shard_cols = l.value(op.logits).cols;
    args.shard_stride = args.shard_cols * args.rows;
    args.vocab_size = static_cast<int32_t>(op.vocab_size);
    args.tokens = l.at(op.tokens);
    args.num_top = l.at(op.num_top);
    args.outputs.logprobs = l.at(op.logprobs);
    args.outputs.ranks = l.at(op.ranks);
    args.outputs.top_tokens = l.at(op.top_tokens);
    args.outputs.top_logprobs = l.at(op.top_logprobs);
    l.kernels().score_tokens(l.stream(), args);
  }
};

}  // namespace refrain::worker
