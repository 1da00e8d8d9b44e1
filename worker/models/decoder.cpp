#include "worker/models/decoder.h"

#include <fmt/format.h>

#include <cmath>

namespace refrain::worker {

DecoderBuilder::DecoderBuilder(const ModelConfig& config, const BuildOptions& options)
    : config_(config),
      options_(options),
      builder_(config.architecture, options.activation_dtype, options.weight_dtype,
               config.vocab_size, options.limits) {
  if (options_.max_positions == 0) options_.max_positions = config.max_position_embeddings;
  const int64_t rotary =
      std::llround(static_cast<double>(config.head_dim) * config.partial_rotary_factor);
  shape_ = {.q_heads = config.num_heads,
            .kv_heads = config.num_kv_heads,
            .head_dim = config.head_dim,
            .rotary_dim = rotary,
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)))};
}

std::string DecoderBuilder::scope(int layer, const std::string& block) const {
  return fmt::format(fmt::runtime(layers_), layer) + block;
}

ValueId DecoderBuilder::embed(int pass) {
  pass_ = pass;
  if (pass == 0) declare_groups();
  ValueId token_ids = kNoValue;
  if (options_.limits.drafts) {
    const OpScope& scope = passes_.begin(pass);
    ops_.begin(scope);
    token_ids = scope.step.token_ids;
  } else {
    ops_.begin({ends_.prepare_inputs()});
    token_ids = ends_.token_ids();
  }
  if (pass == 0) {
    const char* table = "model.embed_tokens.weight";
    const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    table_ = options_.head.head == ipc::DraftHead::kNone
                 ? builder_.matrix(table, vocab, hidden, SplitUnit::kVocab)
                 : builder_.shared_matrix(table, vocab, hidden, SplitUnit::kVocab,
                                          options_.head.weight_dtype);
    rope_table_ = builder_.rope_table(options_.max_positions, shape_.rotary_dim);
  }
  return ops_.embed("embedding", token_ids, table_);
}

// Names as in layer_types of Hugging Face's config.json.
void DecoderBuilder::declare_groups() {
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const int64_t window = config_.window_of(layer);
    int& group = window == 0 ? full_ : sliding_;
    if (group >= 0) continue;
    group = builder_.paged_group(window == 0 ? "full_attention" : "sliding_attention", window);
  }
}

ValueId DecoderBuilder::norm(const std::string& scope, ValueId in) {
  return ops_.rms_norm(scope, in, builder_.vector(scope + ".weight", config_.hidden_size),
                       config_.rms_norm_eps);
}

ValueId DecoderBuilder::add(const std::string& name, ValueId residual, ValueId delta) {
  return ops_.add(name, residual, delta);
}

ValueId DecoderBuilder::linear(const std::string& scope, ValueId in, int64_t rows, int64_t cols,
                               bool bias, Parallel parallel, SplitUnit unit) {
  // The rows of a row-parallel weight, and its bias, are not split.
  const SplitUnit row_unit = parallel == Parallel::kRow ? SplitUnit::kNone : unit;
  const ValueId weight = builder_.matrix(scope + ".weight", rows, cols, row_unit);
  const ValueId bias_value = bias ? builder_.vector(scope + ".bias", rows, row_unit) : kNoValue;
  return ops_.linear(scope, in, weight, bias_value, parallel, unit);
}

ValueId DecoderBuilder::attention(int layer, ValueId in, const AttentionTraits& traits) {
  return linear(scope(layer, "self_attn.o_proj"), attend(layer, in, traits), config_.hidden_size,
                shape_.q_heads * shape_.head_dim, traits.out_bias, Parallel::kRow,
                SplitUnit::kQueryHeads);
}

ValueId DecoderBuilder::attend(int layer, ValueId in, const AttentionTraits& traits) {
  const std::string self = scope(layer, "self_attn");
  const int64_t hidden = builder_.cols(in);
  const int64_t q_cols = shape_.q_heads * shape_.head_dim;
  const int64_t kv_cols = shape_.kv_heads * shape_.head_dim;
  const bool bias = traits.qkv_bias;
  ValueId q =
      linear(self + ".q_proj", in, q_cols, hidden, bias, Parallel::kColumn, SplitUnit::kQueryHeads);
  ValueId k =
      linear(self + ".k_proj", in, kv_cols, hidden, bias, Parallel::kColumn, SplitUnit::kKvHeads);
  const ValueId v =
      linear(self + ".v_proj", in, kv_cols, hidden, bias, Parallel::kColumn, SplitUnit::kKvHeads);
  if (traits.qk_norm) {
    const auto head_norm = [&](const std::string& name, ValueId value) {
      return ops_.rms_norm(self + name, value,
                           builder_.vector(self + name + ".weight", shape_.head_dim),
                           config_.rms_norm_eps, shape_.head_dim);
    };
    q = head_norm(".q_norm", q);
    k = head_norm(".k_norm", k);
  }
  q = ops_.rope(self + ".q_rope", q, rope_table_, shape_.q_heads, shape_);
  k = ops_.rope(self + ".k_rope", k, rope_table_, shape_.kv_heads, shape_);
  if (std::ssize(caches_) == layer) {
    caches_.push_back(builder_.kv_cache(config_.window_of(layer) == 0 ? full_ : sliding_, layer,
                                        shape_, options_.kv_dtype));
  }
  const ValueId cache = caches_[static_cast<size_t>(layer)];
  ops_.kv_write(k, v, cache, shape_);
  return ops_.attention(self + ".attention", q, cache, layer, shape_);
}

ValueId DecoderBuilder::mlp(int layer, ValueId in, bool bias) {
  const std::string mlp = scope(layer, "mlp");
  const int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
  const ValueId gate = linear(mlp + ".gate_proj", in, inner, hidden, bias, Parallel::kColumn,
                              SplitUnit::kIntermediate);
  const ValueId up = linear(mlp + ".up_proj", in, inner, hidden, bias, Parallel::kColumn,
                            SplitUnit::kIntermediate);
  const ValueId product = ops_.silu_gate(mlp + ".act", gate, up);
  return linear(mlp + ".down_proj", product, hidden, inner, bias, Parallel::kRow,
                SplitUnit::kIntermediate);
}

void DecoderBuilder::head(ValueId hidden) {
  const bool drafts = options_.limits.drafts;
  if (drafts && pass_ == 0) return;  // keys and values alone
  const ValueId normed = norm("model.norm", hidden);
  if (options_.pooling) {
    ends_.pool(normed, *options_.pooling);
    return;
  }
  keep_hidden(BuildLimits::kAfterNorm, normed);
  const ValueId rows = drafts ? normed : ops_.select_rows("last_hidden", normed);
  const ValueId head = config_.tie_word_embeddings
                           ? table_
                           : builder_.matrix("lm_head.weight", config_.vocab_size,
                                             config_.hidden_size, SplitUnit::kVocab);
  if (drafts) {
    passes_.end(ops_.lm_head(rows, head, ValueKind::kActivation));
  } else {
    ends_.sample(ops_.lm_head(rows, head));
  }
}

Program DecoderBuilder::finish() { return builder_.finish(options_.max_positions); }

Program build_decoder(const ModelConfig& config, const BuildOptions& options,
                      const AttentionTraits& traits) {
  DecoderBuilder decoder(config, options);
  for (int pass = 0; pass < decoder.num_passes(); ++pass) {
    ValueId hidden = decoder.embed(pass);
    for (int layer = 0; layer < config.num_layers; ++layer) {
      const auto scope = [&](const char* block) { return decoder.scope(layer, block); };
      const ValueId normed = decoder.norm(scope("input_layernorm"), hidden);
      decoder.keep_hidden(layer, hidden);
      const ValueId attended = decoder.attention(layer, normed, traits);
      hidden = decoder.add(scope("attention_residual"), hidden, attended);
      const ValueId product = decoder.mlp(
          layer, decoder.norm(scope("post_attention_layernorm"), hidden), config.mlp_bias);
      hidden = decoder.add(scope("mlp_residual"), hidden, product);
    }
    decoder.head(hidden);
  }
  return decoder.finish();
}

}  // namespace refrain::worker
