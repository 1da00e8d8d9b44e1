#pragma once
// A Llama and its draft head, written down plainly in float32, token by token: what the head drafts
// after some tokens. For tiny checkpoints of float32; independent of the Programs.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tests/graph/tiny_head.h"

namespace refrain::tests {

using Floats = std::vector<float>;

class ReferenceWeights {
 public:
  explicit ReferenceWeights(const std::filesystem::path& directory) {
    std::ifstream file(directory / "model.safetensors", std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string header(length, ' ');
    file.read(header.data(), static_cast<std::streamsize>(length));
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    const auto entries = nlohmann::json::parse(header);
    for (const auto& [name, entry] : entries.items()) {
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      if (entry["dtype"] != "F32") continue;
      Floats& values = tensors_[name];
      values.resize((end - begin) / sizeof(float));
      std::memcpy(values.data(), data.data() + begin, end - begin);
    }
    std::ifstream config(directory / "config.json");
    config_ = nlohmann::json::parse(config);
  }
  const Floats& at(const std::string& name) const { return tensors_.at(name); }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  int number(const char* name) const { return config_.at(name); }

 private:
  std::map<std::string, Floats> tensors_;
  nlohmann::json config_;
};

inline Floats product(const Floats& weight, const Floats& in) {
  Floats out(weight.size() / in.size());
  for (size_t row = 0; row < out.size(); ++row)
    out[row] = std::inner_product(in.begin(), in.end(),
                                  weight.begin() + static_cast<long>(row * in.size()), 0.0f);
  return out;
}
inline Floats sum(const Floats& a, const Floats& b) {
  Floats out(a.size());
  std::ranges::transform(a, b, out.begin(), std::plus<>());
  return out;
}
inline Floats joined(const Floats& a, const Floats& b) {
  Floats out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}
inline Floats normed(const Floats& in, const Floats& weight) {
  const float squares = std::inner_product(in.begin(), in.end(), in.begin(), 0.0f);
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(in.size()) + 1e-5f);
  Floats out(in.size());
  for (size_t i = 0; i < in.size(); ++i) out[i] = in[i] * scale * weight[i];
  return out;
}

// One layer's attention and MLP, with what it keeps.
class ReferenceLayer {
 public:
  ReferenceLayer(const ReferenceWeights& weights, std::string scope)
      : weights_(weights), scope_(std::move(scope)), dim_(weights.number("head_dim")) {}

  // What attention adds to the residual stream; `in` is the next token's.
  Floats attention(const Floats& in) {
    const auto position = static_cast<int>(keys_.size());
    Floats q = product(of("self_attn.q_proj.weight"), in);
    Floats k = product(of("self_attn.k_proj.weight"), in);
    rotate(q, position);
    rotate(k, position);
    keys_.push_back(std::move(k));
    values_.push_back(product(of("self_attn.v_proj.weight"), in));
    const auto heads = q.size() / dim_, group = heads / (keys_[0].size() / dim_);
    Floats out(q.size());
    for (size_t head = 0; head < heads; ++head) {
      const auto from = [&](const Floats& row, size_t at) {
        return row.begin() + static_cast<long>(at * dim_);
      };
      Floats scores;
      for (const Floats& key : keys_)
        scores.push_back(
            std::inner_product(from(q, head), from(q, head + 1), from(key, head / group), 0.0f) /
            std::sqrt(static_cast<float>(dim_)));
      const float most = *std::ranges::max_element(scores);
      float all = 0;
      for (float& score : scores) all += score = std::exp(score - most);
      for (size_t t = 0; t < scores.size(); ++t)
        for (size_t i = 0; i < dim_; ++i)
          out[head * dim_ + i] += scores[t] / all * values_[t][head / group * dim_ + i];
    }
    return product(of("self_attn.o_proj.weight"), out);
  }
  Floats mlp(const Floats& in) const {
    Floats gate = product(of("mlp.gate_proj.weight"), in);
    const Floats up = product(of("mlp.up_proj.weight"), in);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return product(of("mlp.down_proj.weight"), gate);
  }
  const Floats& of(const std::string& name) const { return weights_.at(scope_ + name); }

 private:
  void rotate(Floats& rows, int position) const {
    for (size_t head = 0; head < rows.size(); head += dim_) {
      for (size_t i = 0; i < dim_ / 2; ++i) {
        const double angle =
            position / std::pow(10000.0, 2.0 * static_cast<double>(i) / static_cast<double>(dim_));
        const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
        float &a = rows[head + i], &b = rows[head + i + dim_ / 2];
        const float x = a, y = b;
        a = x * c - y * s;
        b = y * c + x * s;
      }
    }
  }
  const ReferenceWeights& weights_;
  std::string scope_;
  size_t dim_;
  std::vector<Floats> keys_, values_;
};

class HeadReference {
 public:
  HeadReference(const std::filesystem::path& model, const TinyHead& head)
      : shape_(head.shape()), model_(model), head_(head.directory()) {}

  // The `count` tokens that the head says after `tokens`.
  std::vector<TokenId> drafts(const std::vector<TokenId>& tokens, int count) const {
    const std::vector<Floats> states = read(tokens);
    std::vector<ReferenceLayer> layers;
    for (int i = 0; i < shape_.layers; ++i)
      layers.emplace_back(head_, eagle3() ? "midlayer." : "layers." + std::to_string(i) + ".");
    Floats hidden;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) hidden = step(layers, tokens[i + 1], states[i]);
    std::vector<TokenId> drafts = {choose(hidden)};
    while (std::ssize(drafts) < count) {
      hidden = step(layers, drafts.back(), hidden);
      drafts.push_back(choose(hidden));
    }
    return drafts;
  }

 private:
  bool eagle3() const { return shape_.kind == ipc::DraftHead::kEagle3; }
  Floats embedding(TokenId token) const {
    const auto width = static_cast<long>(shape_.hidden);
    const auto row = model_.at("model.embed_tokens.weight").begin() + token * width;
    return {row, row + width};
  }

  // What the head reads of each token.
  std::vector<Floats> read(const std::vector<TokenId>& tokens) const {
    const int count = model_.number("num_hidden_layers");
    std::vector<int> reads = shape_.reads;
    if (reads.empty()) reads = {2, count / 2, count - 3};
    std::vector<ReferenceLayer> layers;
    for (int i = 0; i < count; ++i)
      layers.emplace_back(model_, "model.layers." + std::to_string(i) + ".");
    std::vector<Floats> states;
    for (const TokenId token : tokens) {
      std::vector<Floats> inputs;
      Floats hidden = embedding(token);
      for (ReferenceLayer& layer : layers) {
        inputs.push_back(hidden);
        hidden = sum(hidden, layer.attention(normed(hidden, layer.of("input_layernorm.weight"))));
        hidden =
            sum(hidden, layer.mlp(normed(hidden, layer.of("post_attention_layernorm.weight"))));
      }
      if (!eagle3()) {
        states.push_back(normed(hidden, model_.at("model.norm.weight")));
        continue;
      }
      Floats three;
      for (const int layer : reads) three = joined(three, inputs.at(static_cast<size_t>(layer)));
      states.push_back(product(head_.at("fc.weight"), three));
    }
    return states;
  }

  // The head's hidden state at a place that holds `hidden` and the token after it.
  Floats step(std::vector<ReferenceLayer>& layers, TokenId token, Floats hidden) const {
    const Floats embedded = embedding(token);
    if (!eagle3()) {
      hidden = product(head_.at("fc.weight"), joined(embedded, hidden));
      if (head_.has("fc.bias")) hidden = sum(hidden, head_.at("fc.bias"));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      ReferenceLayer& layer = layers[i];
      Floats in = hidden;
      if (eagle3())
        in = joined(normed(embedded, layer.of("input_layernorm.weight")),
                    normed(hidden, layer.of("hidden_norm.weight")));
      else if (i > 0)
        in = normed(hidden, layer.of("input_layernorm.weight"));
      hidden = sum(hidden, layer.attention(in));
      hidden = sum(hidden, layer.mlp(normed(hidden, layer.of("post_attention_layernorm.weight"))));
    }
    return hidden;
  }

  TokenId choose(const Floats& hidden) const {
    const Floats logits =
        eagle3() ? product(head_.at("lm_head.weight"), normed(hidden, head_.at("norm.weight")))
                 : product(model_.at(model_.has("lm_head.weight") ? "lm_head.weight"
                                                                  : "model.embed_tokens.weight"),
                           hidden);
    const auto best = std::ranges::max_element(logits) - logits.begin();
    return shape_.targets.empty() ? static_cast<TokenId>(best)
                                  : shape_.targets[static_cast<size_t>(best)];
  }

  TinyHeadShape shape_;
  ReferenceWeights model_, head_;
};

}  // namespace refrain::tests
