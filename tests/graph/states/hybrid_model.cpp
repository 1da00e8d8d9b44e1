#include "tests/graph/states/hybrid_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "worker/program/step_ends.h"

namespace refrain::tests {
namespace {

constexpr int kLayers = 3;
constexpr double kEps = 1e-5, kTheta = 10000.0;

std::string scope(int layer, const char* name) {
  return fmt::format("model.layers.{}.{}", layer, name);
}

std::string of_mlp(int replica, const char* name) {
  return fmt::format("model.mlp.{}.{}", replica, name);
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

HybridModel::HybridModel(const HybridShape& shape) : shape_(shape) {
  uint32_t random = 7;
  const int h = shape.hidden, q = shape.heads * shape.head_dim;
  const int kv = shape.kv_heads * shape.head_dim;
  add("model.embed_tokens.weight", shape.vocab, h, random);
  for (int layer = 0; layer < kLayers; ++layer) {
    add(scope(layer, "input_layernorm.weight"), h, 0, random);
    if (layer < 2) {
      add(scope(layer, "self_attn.q_proj.weight"), q, h, random);
      add(scope(layer, "self_attn.k_proj.weight"), kv, h, random);
      add(scope(layer, "self_attn.v_proj.weight"), kv, h, random);
      add(scope(layer, "self_attn.o_proj.weight"), h, q, random);
    } else {
      add(scope(layer, "mixer.gate_proj.weight"), shape.inner, h, random);
      add(scope(layer, "mixer.in_proj.weight"), shape.inner, h, random);
      add(scope(layer, "mixer.out_proj.weight"), h, shape.inner, random);
    }
  }
  add("model.norm.weight", h, 0, random);
  for (int part = 0; shape.replicas > 1 && part < shape.replicas; ++part) {
    const int own = shape.inner / shape.replicas;
    add(of_mlp(part, "up_proj.weight"), own, h, random);
    add(of_mlp(part, "down_proj.weight"), h, own, random);
  }
  write();
}

void HybridModel::add(const std::string& name, int rows, int cols, uint32_t& random) {
  Tensor& tensor = weights_[name];
  tensor.rows = rows;
  tensor.cols = cols;
  const double scale = cols == 0 ? 0.25 : 3.0 / std::sqrt(cols);
  for (int i = 0; i < rows * std::max(cols, 1); ++i) {
    random = random * 1664525u + 1013904223u;
    const double unit = static_cast<double>(random >> 8) / (1 << 23) - 1;
    tensor.data.push_back(static_cast<float>((cols == 0 ? 1.0 : 0.0) + scale * unit));
  }
}

void HybridModel::write() const {
  std::ofstream config(directory() / "config.json");
  config << fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
 "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
 "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
 "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 2,
 "tie_word_embeddings": true, "torch_dtype": "float32"}})",
      shape_.vocab, shape_.hidden, shape_.inner, kLayers, shape_.heads, shape_.kv_heads,
      shape_.head_dim);
  std::string header = "{", data;
  for (const auto& [name, tensor] : weights_) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data.data()),
                tensor.data.size() * sizeof(float));
    const std::string shape = tensor.cols == 0 ? fmt::format("{}", tensor.rows)
                                               : fmt::format("{},{}", tensor.rows, tensor.cols);
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", name, shape, begin, data.size());
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t length = header.size();
  std::ofstream file(directory() / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << data;
}

worker::BuildModel HybridModel::build(int replica) const {
  return [shape = shape_, replica](const ModelConfig& config,
                                   const worker::BuildOptions& options) -> Result<worker::Program> {
    using namespace worker;
    ProgramBuilder b("hybrid", options.activation_dtype, options.weight_dtype, config.vocab_size,
                     options.limits);
    b.set_replicas(shape.replicas);
    OpBuilder ops(b);
    StepEnds ends(b);
    const int groups[] = {b.paged_group("full_attention"),
                          b.paged_group("sliding_attention", shape.window)};
    const int recurrent = b.slot_group("recurrent", shape.recurrence);
    const int64_t h = config.hidden_size, inner = config.intermediate_size;
    const AttentionShape heads{.q_heads = config.num_heads,
                               .kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim,
                               .rotary_dim = config.head_dim,
                               .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim))};
    const auto linear = [&](const std::string& name, ValueId in, int64_t rows, int64_t cols,
                            Parallel parallel, SplitUnit unit) {
      const ValueId weight = b.matrix(name + ".weight", rows, cols,
                                      parallel == Parallel::kRow ? SplitUnit::kNone : unit);
      return ops.linear(name, in, weight, kNoValue, parallel, unit);
    };
    const auto norm = [&](const std::string& name, ValueId in) {
      return ops.rms_norm(name, in, b.vector(name + ".weight", h), kEps);
    };
    const auto attention = [&](int layer, ValueId in) {
      const auto name = [&](const char* end) { return scope(layer, "self_attn") + end; };
      const int64_t q_cols = heads.q_heads * heads.head_dim;
      const int64_t kv_cols = heads.kv_heads * heads.head_dim;
      const ValueId table = b.rope_table(options.max_positions, heads.rotary_dim);
      ValueId q = linear(name(".q_proj"), in, q_cols, h, Parallel::kColumn, SplitUnit::kQueryHeads);
      ValueId k = linear(name(".k_proj"), in, kv_cols, h, Parallel::kColumn, SplitUnit::kKvHeads);
      const ValueId v =
          linear(name(".v_proj"), in, kv_cols, h, Parallel::kColumn, SplitUnit::kKvHeads);
      q = ops.rope(name(".q_rope"), q, table, heads.q_heads, heads);
      k = ops.rope(name(".k_rope"), k, table, heads.kv_heads, heads);
      const ValueId cache = b.kv_cache(groups[layer], layer, heads, options.kv_dtype);
      ops.kv_write(k, v, cache, heads);
      const ValueId out = ops.attention(name(".attention"), q, cache, layer, heads);
      return linear(name(".o_proj"), out, h, q_cols, Parallel::kRow, SplitUnit::kQueryHeads);
    };
    const auto recurrence = [&](int layer, ValueId in) {
      const auto name = [&](const char* end) { return scope(layer, "mixer") + end; };
      const ValueId gate =
          linear(name(".gate_proj"), in, inner, h, Parallel::kColumn, SplitUnit::kIntermediate);
      const ValueId x =
          linear(name(".in_proj"), in, inner, h, Parallel::kColumn, SplitUnit::kIntermediate);
      const ValueId state =
          b.slot_state(recurrent, layer, {.split = SplitUnit::kIntermediate, .elements = inner});
      const ValueId out = ops.linear_recurrence(name(".recurrence"), gate, x, state);
      return linear(name(".out_proj"), out, h, inner, Parallel::kRow, SplitUnit::kIntermediate);
    };
    ops.begin({ends.prepare_inputs()});
    const ValueId ids = ends.token_ids();
    const ValueId table =
        b.matrix("model.embed_tokens.weight", config.vocab_size, h, SplitUnit::kVocab);
    ValueId hidden = ops.embed("embedding", ids, table);
    for (int layer = 0; layer < kLayers; ++layer) {
      const ValueId in = norm(scope(layer, "input_layernorm"), hidden);
      const ValueId out = layer < 2 ? attention(layer, in) : recurrence(layer, in);
      hidden = ops.add(scope(layer, "residual"), hidden, out);
    }
    if (shape.replicas > 1) {
      const int64_t own = inner / shape.replicas;
      const auto part = [&](const char* name, ValueId in, int64_t rows, int64_t cols) {
        return linear(of_mlp(replica, name), in, rows, cols, Parallel::kReplicated,
                      SplitUnit::kNone);
      };
      const ValueId all = ops.gather_replicas("mlp.all", hidden);
      const ValueId up = part("up_proj", all, own, h);
      const ValueId sum = ops.reduce_replicas("mlp.sum", part("down_proj", up, h, own));
      hidden = ops.add("mlp.residual", hidden, sum);
    }
    ends.sample(ops.lm_head(ops.select_rows("last_hidden", norm("model.norm", hidden)), table));
    return b.finish(options.max_positions);
  };
}

HybridModel::Vector HybridModel::linear(const std::string& name, const Vector& in) const {
  const std::vector<float>& w = weight(name);
  Vector out(w.size() / in.size());
  for (size_t row = 0; row < out.size(); ++row)
    for (size_t i = 0; i < in.size(); ++i) out[row] += double{w[row * in.size() + i]} * in[i];
  return out;
}

HybridModel::Vector HybridModel::norm(const std::string& name, const Vector& in) const {
  double sum = 0;
  for (const double x : in) sum += x * x;
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(in.size()) + kEps);
  Vector out;
  for (size_t i = 0; i < in.size(); ++i) out.push_back(in[i] * scale * weight(name)[i]);
  return out;
}

void HybridModel::rotate(double* head, int position) const {
  const int half = shape_.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position / std::pow(kTheta, double(i) / half);
    const double x = head[i], y = head[half + i];
    head[i] = x * std::cos(angle) - y * std::sin(angle);
    head[half + i] = y * std::cos(angle) + x * std::sin(angle);
  }
}

std::vector<HybridModel::Vector> HybridModel::attention(int layer, const std::vector<Vector>& in,
                                                        int window) const {
  const int dim = shape_.head_dim, count = static_cast<int>(in.size());
  std::vector<Vector> q, k, v, out;
  for (int t = 0; t < count; ++t) {
    q.push_back(linear(scope(layer, "self_attn.q_proj.weight"), in[t]));
    k.push_back(linear(scope(layer, "self_attn.k_proj.weight"), in[t]));
    v.push_back(linear(scope(layer, "self_attn.v_proj.weight"), in[t]));
    for (int head = 0; head < shape_.heads; ++head) rotate(q[t].data() + head * dim, t);
    for (int head = 0; head < shape_.kv_heads; ++head) rotate(k[t].data() + head * dim, t);
  }
  for (int t = 0; t < count; ++t) {
    Vector mixed(q[t].size());
    for (int head = 0; head < shape_.heads; ++head) {
      const int kv = head / (shape_.heads / shape_.kv_heads) * dim;
      double total = 0;
      for (int s = window > 0 ? std::max(0, t - window + 1) : 0; s <= t; ++s) {
        double score = 0;
        for (int i = 0; i < dim; ++i) score += q[t][head * dim + i] * k[s][kv + i];
        const double share = std::exp(score / std::sqrt(double(dim)));
        total += share;
        for (int i = 0; i < dim; ++i) mixed[head * dim + i] += share * v[s][kv + i];
      }
      for (int i = 0; i < dim; ++i) mixed[head * dim + i] /= total;
    }
    out.push_back(linear(scope(layer, "self_attn.o_proj.weight"), mixed));
  }
  return out;
}

std::vector<HybridModel::Vector> HybridModel::recurrence(int layer,
                                                         const std::vector<Vector>& in) const {
  Vector h(static_cast<size_t>(shape_.inner));
  std::vector<Vector> out;
  for (const Vector& x : in) {
    const Vector gate = linear(scope(layer, "mixer.gate_proj.weight"), x);
    const Vector fed = linear(scope(layer, "mixer.in_proj.weight"), x);
    for (size_t i = 0; i < h.size(); ++i) {
      const double a = sigmoid(gate[i]);
      h[i] = a * h[i] + (1.0 - a) * fed[i];
    }
    out.push_back(linear(scope(layer, "mixer.out_proj.weight"), h));
  }
  return out;
}

HybridModel::Vector HybridModel::mlp(const Vector& in) const {
  Vector out(in.size());
  for (int part = 0; part < shape_.replicas; ++part) {
    const Vector up = linear(of_mlp(part, "up_proj.weight"), in);
    const Vector down = linear(of_mlp(part, "down_proj.weight"), up);
    for (size_t i = 0; i < out.size(); ++i) out[i] += down[i];
  }
  return out;
}

TokenId HybridModel::next(const std::vector<TokenId>& tokens) const {
  const std::vector<float>& table = weight("model.embed_tokens.weight");
  std::vector<Vector> hidden;
  for (const TokenId token : tokens)
    hidden.emplace_back(table.begin() + token * shape_.hidden,
                        table.begin() + (token + 1) * shape_.hidden);
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<Vector> in;
    for (const Vector& h : hidden) in.push_back(norm(scope(layer, "input_layernorm.weight"), h));
    const std::vector<Vector> out =
        layer == 2 ? recurrence(layer, in) : attention(layer, in, layer == 1 ? shape_.window : 0);
    for (size_t t = 0; t < hidden.size(); ++t)
      for (size_t i = 0; i < hidden[t].size(); ++i) hidden[t][i] += out[t][i];
  }
  if (shape_.replicas > 1) {
    const Vector out = mlp(hidden.back());
    for (size_t i = 0; i < out.size(); ++i) hidden.back()[i] += out[i];
  }
  const Vector logits =
      linear("model.embed_tokens.weight", norm("model.norm.weight", hidden.back()));
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

std::vector<TokenId> HybridModel::answer(std::vector<TokenId> tokens, int count) const {
  std::vector<TokenId> said;
  for (int i = 0; i < count; ++i) {
    said.push_back(next(tokens));
    tokens.push_back(said.back());
  }
  return said;
}

}  // namespace refrain::tests
