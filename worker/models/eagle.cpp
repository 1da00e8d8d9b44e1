// Draft heads: EAGLE (arXiv 2401.15077) and EAGLE-3 (arXiv 2503.01840). A head is a decoder of a
// layer or a few that reads, beside each token, the hidden state that the target had at the token
// before; in that state's place it keeps keys and values of the two. Of its own drafts it takes its
// own hidden states. Names and shapes are those of published checkpoints; embeddings are the
// target's.
//
//   eagle   in = fc(embedding | hidden), hidden behind the target's final norm; layers "layers.N",
//           the first without an input norm; logits by the target's lm_head.
//   eagle3  hidden = fc(three hidden states of the target); layer "midlayer" attends over
//           norm(embedding) | norm(hidden); final norm and lm_head of its own, of a part of the
//           vocabulary, which d2t ("draft to target") names.

#include "worker/models/decoder.h"

namespace refrain::worker {
namespace {

class HeadBuilder : public DecoderBuilder {
 public:
  HeadBuilder(const ModelConfig& config, const BuildOptions& options, int num_hidden)
      : DecoderBuilder(config, options), num_hidden_(num_hidden) {
    layers_ = eagle3() ? "midlayer." : "layers.{}.";
  }

  Program build() {
    for (int pass = 0; pass < num_passes(); ++pass) {
      const ValueId embedded = embed(pass);
      if (pass == 0) of_target_ = hidden_ = read_hidden();
      if (pass == 1) hidden_ = ops_.select_rows("hidden", of_target_, passes_.hidden_index());
      run_layers(pass, embedded);
      if (pass > 0) draft();
    }
    return finish();
  }

 private:
  bool eagle3() const { return options_.head.head == ipc::DraftHead::kEagle3; }

  ValueId fc(const std::string& name, const std::vector<ValueId>& parts) {
    const ValueId in = parts.size() == 1 ? parts.front() : ops_.concat(name + ".in", parts);
    const ValueId weight = builder_.matrix("fc.weight", config_.hidden_size, builder_.cols(in));
    const ValueId bias =
        config_.fc_bias ? builder_.vector("fc.bias", config_.hidden_size) : kNoValue;
    return ops_.linear(name, in, weight, bias, Parallel::kReplicated, SplitUnit::kNone);
  }

  // Of the target's tokens, [T, H].
  ValueId read_hidden() {
    std::vector<ValueId> states;
    for (int i = 0; i < num_hidden_; ++i)
      states.push_back(passes_.hidden_state(i, config_.hidden_size));
    return eagle3() ? fc("fc", states) : states.front();
  }

  // The first pass is for keys and values alone.
  void run_layers(int pass, ValueId embedded) {
    if (!eagle3()) hidden_ = fc("fc", {embedded, hidden_});
    const auto num_layers = static_cast<int>(config_.num_layers);
    for (int layer = 0; layer < num_layers; ++layer) {
      const AttentionTraits traits{.qkv_bias = config_.attention_bias,
                                   .out_bias = config_.attention_out_bias};
      const ValueId in = layer_input(layer, embedded);
      if (pass == 0 && layer + 1 == num_layers) {
        attend(layer, in, traits);
        return;
      }
      hidden_ = add(scope(layer, "attention_residual"), hidden_, attention(layer, in, traits));
      const ValueId normed = norm(scope(layer, "post_attention_layernorm"), hidden_);
      hidden_ = add(scope(layer, "mlp_residual"), hidden_, mlp(layer, normed, config_.mlp_bias));
    }
  }

  ValueId layer_input(int layer, ValueId embedded) {
    if (!eagle3()) return layer == 0 ? hidden_ : norm(scope(layer, "input_layernorm"), hidden_);
    const ValueId of_token = norm(scope(layer, "input_layernorm"), embedded);
    const ValueId of_hidden = norm(scope(layer, "hidden_norm"), hidden_);
    if (config_.norm_before_residual) hidden_ = of_hidden;
    return ops_.concat(scope(layer, "input"), {of_token, of_hidden});
  }

  void draft() {
    const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    if (!eagle3()) {
      const ValueId head = options_.head.tied ? table_
                                              : builder_.shared_matrix("lm_head.weight", vocab,
                                                                       hidden, SplitUnit::kVocab,
                                                                       options_.head.weight_dtype);
      passes_.end(ops_.lm_head(hidden_, head, ValueKind::kActivation));
      return;
    }
    const ValueId normed = norm("norm", hidden_);
    if (config_.draft_vocab_size == 0) {
      const ValueId head = builder_.matrix("lm_head.weight", vocab, hidden, SplitUnit::kVocab);
      passes_.end(ops_.lm_head(normed, head, ValueKind::kActivation));
      return;
    }
    // Every rank has all of it: it is small, and its tokens are spread over the vocabulary.
    const ValueId head = builder_.matrix("lm_head.weight", config_.draft_vocab_size, hidden);
    const ValueId logits =
        ops_.lm_head(normed, head, ValueKind::kActivation, Parallel::kReplicated);
    passes_.end(ops_.map_logits(logits, "d2t"));
  }

  int num_hidden_;
  ValueId of_target_ = kNoValue, hidden_ = kNoValue;
};

tl::unexpected<Error> no_head(const std::string& what) {
  return fail_field("speculative_config", "speculative_config: the draft head {}", what);
}

}  // namespace

std::vector<int64_t> hidden_states_of(ipc::DraftHead kind, const ModelConfig& head,
                                      const ModelConfig& target) {
  if (kind == ipc::DraftHead::kEagle) return {BuildLimits::kAfterNorm};
  if (!head.hidden_layers.empty()) return {head.hidden_layers.begin(), head.hidden_layers.end()};
  return {2, target.num_layers / 2, target.num_layers - 3};
}

Result<Program> build_head(const ModelConfig& head, const ModelConfig& target,
                           const BuildOptions& options) {
  const std::vector<int64_t> states = hidden_states_of(options.head.head, head, target);
  if (states.size() > kernels::kMaxParts)
    return no_head(
        fmt::format("reads {} hidden states; {} are the most", states.size(), kernels::kMaxParts));
  for (const int64_t layer : states) {
    if (layer == BuildLimits::kAfterNorm || (layer >= 0 && layer < target.num_layers)) continue;
    return no_head(
        fmt::format("reads what goes into layer {}, of a model of {} layers; "
                    "eagle_aux_hidden_state_layer_ids of its config.json names the layers",
                    layer, target.num_layers));
  }
  if (head.hidden_size != target.hidden_size)
    return no_head(fmt::format("has hidden_size {}, the model {}; they must be the same",
                               head.hidden_size, target.hidden_size));
  if (options.head.head == ipc::DraftHead::kEagle3 && head.num_layers != 1)
    return no_head(fmt::format("has {} layers; an EAGLE-3 head has one", head.num_layers));
  return HeadBuilder(head, options, static_cast<int>(states.size())).build();
}

}  // namespace refrain::worker
