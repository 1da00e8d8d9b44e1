#pragma once
// A draft head with made-up weights for a tiny model, in a directory as heads are published: names,
// shapes and config.json of EAGLE and EAGLE-3 heads (safetensors).

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/json.h"
#include "tests/graph/tiny_model.h"
#include "tests/temporary_directory.h"

namespace refrain::tests {

struct TinyHeadShape {
  ipc::DraftHead kind = ipc::DraftHead::kEagle;
  int layers = 1, hidden = 64, inner = 96, heads = 4, kv_heads = 2, head_dim = 16, vocab = 259;
  bool fc_bias = false;
  // eagle3: tokens of its vocabulary, and the layers whose inputs it reads (empty: the usual ones).
  std::vector<int> targets = {};
  std::vector<int> reads = {};
  uint32_t seed = 11;
  std::string without = {};  // a tensor that is left out
};

class TinyHead {
 public:
  explicit TinyHead(const TinyHeadShape& shape) : shape_(shape) {
    add_tensors();
    write_config();
    write_weights();
  }
  const std::filesystem::path& directory() const { return directory_.path(); }
  const TinyHeadShape& shape() const { return shape_; }

 private:
  bool eagle3() const { return shape_.kind == ipc::DraftHead::kEagle3; }

  void add(const std::string& name, int rows, int cols) {
    if (name == shape_.without) return;
    const bool vector = cols == 0;
    std::string& data = tensors_[name];
    for (int i = 0; i < rows * (vector ? 1 : cols); ++i) {
      const double unit = static_cast<double>(random_()) / 4294967296.0 * 2 - 1;
      const double scale = vector ? 0.25 : 3.0 / std::sqrt(cols);
      const auto value = static_cast<float>((vector ? 1.0 : 0.0) + scale * unit);
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header_[name] = {{"dtype", "F32"},
                     {"shape", vector ? std::vector<int>{rows} : std::vector<int>{rows, cols}}};
  }

  void add_vocabulary() {
    std::string& offsets = tensors_["d2t"];
    for (size_t i = 0; i < shape_.targets.size(); ++i) {
      const int64_t offset = shape_.targets[i] - static_cast<int64_t>(i);
      offsets.append(reinterpret_cast<const char*>(&offset), sizeof offset);
    }
    header_["d2t"] = {{"dtype", "I64"}, {"shape", {shape_.targets.size()}}};
    tensors_["t2d"] = std::string(static_cast<size_t>(shape_.vocab), '\0');
    header_["t2d"] = {{"dtype", "BOOL"}, {"shape", {shape_.vocab}}};
  }

  void add_tensors() {
    const int h = shape_.hidden, q = shape_.heads * shape_.head_dim;
    const int kv = shape_.kv_heads * shape_.head_dim, in = eagle3() ? 2 * h : h;
    add("fc.weight", h, eagle3() ? 3 * h : 2 * h);
    if (shape_.fc_bias) add("fc.bias", h, 0);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::string scope = eagle3() ? "midlayer." : "layers." + std::to_string(layer) + ".";
      if (eagle3()) add(scope + "hidden_norm.weight", h, 0);
      if (eagle3() || layer > 0) add(scope + "input_layernorm.weight", h, 0);
      add(scope + "self_attn.q_proj.weight", q, in);
      add(scope + "self_attn.k_proj.weight", kv, in);
      add(scope + "self_attn.v_proj.weight", kv, in);
      add(scope + "self_attn.o_proj.weight", h, q);
      add(scope + "post_attention_layernorm.weight", h, 0);
      add(scope + "mlp.gate_proj.weight", shape_.inner, h);
      add(scope + "mlp.up_proj.weight", shape_.inner, h);
      add(scope + "mlp.down_proj.weight", h, shape_.inner);
    }
    if (!eagle3()) return;
    const int vocab =
        shape_.targets.empty() ? shape_.vocab : static_cast<int>(shape_.targets.size());
    add("norm.weight", h, 0);
    add("lm_head.weight", vocab, h);
    if (!shape_.targets.empty()) add_vocabulary();
  }

  void write_config() const {
    nlohmann::json config = {
        {"architectures", {eagle3() ? "LlamaForCausalLMEagle3" : "LlamaForCausalLM"}},
        {"model_type", "llama"},
        {"hidden_act", "silu"},
        {"vocab_size", shape_.vocab},
        {"hidden_size", shape_.hidden},
        {"intermediate_size", shape_.inner},
        {"num_hidden_layers", shape_.layers},
        {"num_attention_heads", shape_.heads},
        {"num_key_value_heads", shape_.kv_heads},
        {"head_dim", shape_.head_dim},
        {"max_position_embeddings", 512},
        {"rms_norm_eps", 1e-5},
        {"rope_theta", 10000.0},
        {"tie_word_embeddings", false},
        {"torch_dtype", "float32"}};
    if (shape_.fc_bias) config["bias"] = true;
    if (!shape_.targets.empty()) config["draft_vocab_size"] = shape_.targets.size();
    if (!shape_.reads.empty()) config["eagle_aux_hidden_state_layer_ids"] = shape_.reads;
    std::ofstream(directory_.path() / "config.json") << config.dump(1) << "\n";
  }

  void write_weights() {
    std::string data;
    for (const auto& [name, bytes] : tensors_) {
      header_[name]["data_offsets"] = {data.size(), data.size() + bytes.size()};
      data += bytes;
    }
    std::string header = header_.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(directory_.path() / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header << data;
  }

  TinyHeadShape shape_;
  std::mt19937 random_{shape_.seed};
  std::map<std::string, std::string> tensors_;
  nlohmann::json header_ = nlohmann::json::object();
  TemporaryDirectory directory_;
};

}  // namespace refrain::tests
