#pragma once
// A random PEFT adapter of a TinyModel, and the same model with the adapter merged into its weights
// (W + scale * B * A, in float): what the adapter must come to.

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {

struct TinyAdapterShape {
  int rank = 8;
  double alpha = 16;
  bool rslora = false;
  std::vector<std::string> targets = {"q_proj",  "k_proj",    "v_proj",  "o_proj",      "gate_proj",
                                      "up_proj", "down_proj", "lm_head", "embed_tokens"};
  uint32_t seed = 1;
};

class TinyAdapter {
 public:
  TinyAdapter(const TinyModelShape& model, const TinyAdapterShape& shape)
      : model_(model), shape_(shape) {
    std::mt19937 random(shape.seed);
    const auto draw = [&](std::vector<float>& values, int count, double scale) {
      for (int i = 0; i < count; ++i)
        values.push_back(
            static_cast<float>(scale * (static_cast<double>(random()) / 2147483648.0 - 1)));
    };
    const auto add = [&](const std::string& name, int rows, int cols) {
      Pair& pair = pairs_[name];
      pair = {rows, cols, {}, {}};
      draw(pair.a, shape.rank * cols, 1.5 / std::sqrt(cols));
      draw(pair.b, rows * shape.rank, 0.8 / std::sqrt(shape.rank));
    };
    for (const std::string& target : shape.targets) {
      if (target == "lm_head") {
        add(target, model.vocab, model.hidden);
        continue;
      }
      if (target == "embed_tokens") {
        add(kEmbedding, model.hidden, model.vocab);
        continue;
      }
      const auto [scope, rows, cols] = module(target);
      for (int layer = 0; layer < model.layers; ++layer)
        add("model.layers." + std::to_string(layer) + "." + scope + "." + target, rows, cols);
    }
    write();
  }

  const std::filesystem::path& directory() const { return directory_.path(); }
  double scale() const {
    return shape_.alpha / (shape_.rslora ? std::sqrt(shape_.rank) : shape_.rank);
  }

  // A copy of the model's directory with the sum in its weights. A head that is tied to the
  // embeddings gets weights of its own: an adapter changes the one without the other.
  void merge(const std::filesystem::path& model, const std::filesystem::path& into) const {
    std::ifstream file(model / "model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    auto header = nlohmann::json::parse(bytes.substr(8, length));
    std::string data = bytes.substr(8 + length);
    auto config = nlohmann::json::parse(std::ifstream(model / "config.json"));
    if (config["tie_word_embeddings"] == true) {
      config["tie_word_embeddings"] = false;
      nlohmann::json& head = header["lm_head.weight"] = header["model.embed_tokens.weight"];
      const size_t begin = head["data_offsets"][0], end = head["data_offsets"][1];
      head["data_offsets"] = {data.size(), data.size() + end - begin};
      data += data.substr(begin, end - begin);
    }
    std::ofstream(into / "config.json") << config.dump();
    for (const auto& [name, pair] : pairs_) {
      const size_t begin = header[name + ".weight"]["data_offsets"][0];
      char* at = data.data() + begin;
      const bool by_token = name == kEmbedding;  // which has a row for each of A's columns
      const int rows = by_token ? pair.cols : pair.rows, cols = by_token ? pair.rows : pair.cols;
      for (int i = 0; i < rows; ++i) {
        for (int k = 0; k < cols; ++k, at += sizeof(float)) {
          const int row = by_token ? k : i, col = by_token ? i : k;
          float weight = 0;
          std::memcpy(&weight, at, sizeof weight);
          double sum = 0;
          for (int j = 0; j < shape_.rank; ++j)
            sum += double{pair.b[static_cast<size_t>(row * shape_.rank + j)]} *
                   pair.a[static_cast<size_t>(j * pair.cols + col)];
          weight = static_cast<float>(weight + scale() * sum);
          std::memcpy(at, &weight, sizeof weight);
        }
      }
    }
    write_tensors(into / "model.safetensors", header, data);
  }

 private:
  static constexpr const char* kEmbedding = "model.embed_tokens";
  struct Pair {
    int rows, cols;
    std::vector<float> a, b;
  };
  struct Module {
    std::string scope;
    int rows, cols;
  };

  Module module(const std::string& target) const {
    const int q = model_.heads * model_.head_dim, kv = model_.kv_heads * model_.head_dim;
    if (target == "q_proj") return {"self_attn", q, model_.hidden};
    if (target == "k_proj" || target == "v_proj") return {"self_attn", kv, model_.hidden};
    if (target == "o_proj") return {"self_attn", model_.hidden, q};
    if (target == "down_proj") return {"mlp", model_.hidden, model_.inner};
    return {"mlp", model_.inner, model_.hidden};
  }

  void write() const {
    nlohmann::json config = {{"peft_type", "LORA"},
                             {"r", shape_.rank},
                             {"lora_alpha", shape_.alpha},
                             {"use_rslora", shape_.rslora},
                             {"bias", "none"},
                             {"use_dora", false},
                             {"modules_to_save", nullptr},
                             {"target_modules", shape_.targets}};
    std::ofstream(directory_.path() / "adapter_config.json") << config.dump();
    nlohmann::json header;
    std::string data;
    for (const auto& [name, pair] : pairs_) {
      const auto put = [&](const char* leaf, const std::vector<float>& values, int rows, int cols) {
        const size_t begin = data.size();
        data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        header["base_model.model." + name + leaf] = {
            {"dtype", "F32"}, {"shape", {rows, cols}}, {"data_offsets", {begin, data.size()}}};
      };
      const bool embeds = name == kEmbedding;
      put(embeds ? ".lora_embedding_A" : ".lora_A.weight", pair.a, shape_.rank, pair.cols);
      put(embeds ? ".lora_embedding_B" : ".lora_B.weight", pair.b, pair.rows, shape_.rank);
    }
    write_tensors(directory_.path() / "adapter_model.safetensors", header, data);
  }

  static void write_tensors(const std::filesystem::path& path, const nlohmann::json& header,
                            const std::string& data) {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text << data;
  }

  TinyModelShape model_;
  TinyAdapterShape shape_;
  std::map<std::string, Pair> pairs_;
  TemporaryDirectory directory_;
};

}  // namespace refrain::tests
