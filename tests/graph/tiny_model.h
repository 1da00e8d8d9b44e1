#pragma once
// A tiny random Llama checkpoint (config.json and model.safetensors) with a fixed seed, in a fresh
// directory that goes with the object: tests need no Python and no downloaded model.

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/temporary_directory.h"

namespace refrain::tests {

struct TinyModelShape {
  int layers = 2, hidden = 64, inner = 96, heads = 4, kv_heads = 2, head_dim = 16, vocab = 259;
  bool tied = true;
  bool bfloat16 = false;  // of the stored weights
  uint32_t seed = 7;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyModelShape& shape = {}) : shape_(shape) {
    write_config();
    write_weights();
  }
  const std::filesystem::path& directory() const { return directory_.path(); }
  const TinyModelShape& shape() const { return shape_; }

 private:
  struct Tensor {
    std::string name;
    int rows, cols;  // cols 0: a vector
  };

  const char* dtype() const { return shape_.bfloat16 ? "bfloat16" : "float32"; }

  void write_config() const {
    std::ofstream file(directory_.path() / "config.json");
    file << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu")"
         << ", \"vocab_size\": " << shape_.vocab << ", \"hidden_size\": " << shape_.hidden
         << ", \"intermediate_size\": " << shape_.inner
         << ", \"num_hidden_layers\": " << shape_.layers
         << ", \"num_attention_heads\": " << shape_.heads
         << ", \"num_key_value_heads\": " << shape_.kv_heads
         << ", \"head_dim\": " << shape_.head_dim << R"(, "max_position_embeddings": 512)"
         << R"(, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 2)"
         << ", \"tie_word_embeddings\": " << (shape_.tied ? "true" : "false")
         << ", \"torch_dtype\": \"" << dtype() << "\"}\n";
  }

  std::vector<Tensor> tensors() const {
    const int h = shape_.hidden, q = shape_.heads * shape_.head_dim;
    const int kv = shape_.kv_heads * shape_.head_dim;
    std::vector<Tensor> list = {{"model.embed_tokens.weight", shape_.vocab, h}};
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::string scope = "model.layers." + std::to_string(layer) + ".";
      list.push_back({scope + "input_layernorm.weight", h, 0});
      list.push_back({scope + "self_attn.q_proj.weight", q, h});
      list.push_back({scope + "self_attn.k_proj.weight", kv, h});
      list.push_back({scope + "self_attn.v_proj.weight", kv, h});
      list.push_back({scope + "self_attn.o_proj.weight", h, q});
      list.push_back({scope + "post_attention_layernorm.weight", h, 0});
      list.push_back({scope + "mlp.gate_proj.weight", shape_.inner, h});
      list.push_back({scope + "mlp.up_proj.weight", shape_.inner, h});
      list.push_back({scope + "mlp.down_proj.weight", h, shape_.inner});
    }
    list.push_back({"model.norm.weight", h, 0});
    if (!shape_.tied) list.push_back({"lm_head.weight", shape_.vocab, h});
    return list;
  }

  void append(std::string& data, float value) const {
    if (shape_.bfloat16) {
      const BFloat16 narrow = to_bfloat16(value);
      data.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    } else {
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }

  void write_weights() const {
    std::mt19937 random(shape_.seed);
    std::string header = "{", data;
    for (const Tensor& tensor : tensors()) {
      const bool vector = tensor.cols == 0;
      const size_t begin = data.size();
      const int count = tensor.rows * (vector ? 1 : tensor.cols);
      for (int i = 0; i < count; ++i) {
        const double unit =
            static_cast<double>(random()) / 4294967296.0 * 2 - 1;  // the same on every library
        const double scale = vector ? 0.25 : 3.0 / std::sqrt(tensor.cols);
        append(data, static_cast<float>((vector ? 1.0 : 0.0) + scale * unit));
      }
      header += (header.size() > 1 ? "," : "") + ("\"" + tensor.name + "\":{\"dtype\":\"") +
                (shape_.bfloat16 ? "BF16" : "F32") + "\",\"shape\":[" +
                std::to_string(tensor.rows) + (vector ? "" : "," + std::to_string(tensor.cols)) +
                "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) +
                "]}";
    }
    header += "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(directory_.path() / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header << data;
  }

  TinyModelShape shape_;
  TemporaryDirectory directory_;
};

}  // namespace refrain::tests
