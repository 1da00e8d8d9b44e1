#pragma once
// A model that no server has, for what no served model uses yet: a layer of full attention, one
// within a sliding window, one recurrent, each h += mixer(norm(h)). Its Program, a random
// checkpoint of it, and what it says by plain loops in double precision.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "tests/temporary_directory.h"
#include "worker/models/models.h"

namespace refrain::tests {

struct HybridShape {
  int hidden = 64, inner = 96, heads = 4, kv_heads = 2, head_dim = 16, vocab = 259;
  int window = 12;
  // Replicas that step together: a last layer, two linears, is divided among them, and each
  // computes its part for the tokens of all. 1: there is no such layer.
  int replicas = 1;
  worker::AttentionCGSupport recurrence = worker::AttentionCGSupport::kAlways;
};

class HybridModel {
 public:
  explicit HybridModel(const HybridShape& shape = {});
  const std::filesystem::path& directory() const { return directory_.path(); }
  const HybridShape& shape() const { return shape_; }
  worker::BuildModel build(int replica = 0) const;
  // The `count` greedy tokens after a prompt.
  std::vector<TokenId> answer(std::vector<TokenId> tokens, int count) const;

 private:
  using Vector = std::vector<double>;
  const std::vector<float>& weight(const std::string& name) const { return weights_.at(name).data; }
  Vector linear(const std::string& name, const Vector& in) const;
  Vector norm(const std::string& name, const Vector& in) const;
  void rotate(double* head, int position) const;
  std::vector<Vector> attention(int layer, const std::vector<Vector>& in, int window) const;
  std::vector<Vector> recurrence(int layer, const std::vector<Vector>& in) const;
  Vector mlp(const Vector& in) const;
  TokenId next(const std::vector<TokenId>& tokens) const;

  struct Tensor {
    int rows = 0, cols = 0;  // cols 0: a vector
    std::vector<float> data;
  };
  void add(const std::string& name, int rows, int cols, uint32_t& random);
  void write() const;

  HybridShape shape_;
  std::map<std::string, Tensor> weights_;
  TemporaryDirectory directory_;
};

}  // namespace refrain::tests
