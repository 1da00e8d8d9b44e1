#pragma once
// The kernels of one step of a SmolLM2-135M-shaped model, in their order, on weights of random
// bits: what a runner launches, without the runner. Owns all its memory.

#include <array>
#include <deque>

#include "kernels/host/isa.h"
#include "tests/bench/kernels/bench_team.h"

namespace refrain::kernels {

struct SmolShape {
  int32_t hidden = 576, intermediate = 1536, layers = 30, q_heads = 9, kv_heads = 3;
  int32_t head_dim = 64, vocab = 49152, block_size = 16;
};

// `rows` requests of `query_len` new tokens over `context` tokens each.
struct SmolStep {
  int32_t rows = 1;
  int32_t query_len = 1;
  int32_t context = 0;
};

class SmolBench {
 public:
  SmolBench(BenchTeam& team, HostIsa isa, DType activations, DType weights);

  // Records a step's launches in the team.
  void record(const SmolStep& step);
  double weight_bytes() const { return weight_bytes_; }  // read once a step
  double flops(const SmolStep& step) const;              // of linear and attention

  Weight& weight(int layer, int which) { return layers_[layer][which]; }  // qkv, o, gate_up, down
  const Weight& head() const { return head_; }
  const SmolShape& shape() const { return shape_; }

 private:
  Weight make_weight(int64_t n, int64_t k);
  void* make(size_t bytes) { return buffers_.emplace_back(bytes).as<void>(); }
  void prepare(const SmolStep& step);
  void record_layer(int layer, int32_t tokens, int32_t rows);

  SmolShape shape_;
  BenchTeam& team_;
  const KernelTable& table_;
  DType activations_, weights_;
  double weight_bytes_ = 0;
  std::deque<Buffer> buffers_;
  std::vector<std::array<Weight, 4>> layers_;
  std::vector<void*> caches_;
  Weight head_;
  const float* norm_ = nullptr;
  const float* cos_sin_ = nullptr;
  std::deque<Buffer> step_buffers_;
  BatchInputs inputs_;
  const int32_t* block_table_ = nullptr;
  int64_t* kv_slots_ = nullptr;
  Matrix residual_, normed_, qkv_, attended_, delta_, gate_up_, activated_, last_;
};

}  // namespace refrain::kernels
