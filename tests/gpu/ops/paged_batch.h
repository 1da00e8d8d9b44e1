#pragma once
// A paged decode or mixed batch in fixed memory, whose step changes between replays of a graph,
// held to attention_simple.

#include <cmath>
#include <functional>

#include "kernels/cuda/ops.h"
#include "tests/gpu/ops/captured.h"

namespace refrain::kernels {

inline constexpr int32_t kBlock = 16, kMaxBlocks = 64, kBlocks = 200, kMostRows = 512;
inline constexpr int32_t kGroup = 4;

inline float from_half(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// A decode or mixed batch over a cache whose blocks are shared by the requests: block 0 is poison,
// block k < 16 has k tokens and then poison, the others are full.
class PagedBatch {
 public:
  using Kernel = std::function<void(StreamRef, const AttentionArgs&)>;

  PagedBatch(Harness& harness, int32_t kv_heads, int32_t dim, DType dtype = kBf16)
      : harness_(harness), dtype_(dtype), cols_(int64_t{kGroup} * kv_heads * dim) {
    const int64_t plane = int64_t{kBlock} * dim, block = 2 * kv_heads * plane;
    auto cache = random_values(static_cast<size_t>(kBlocks * block), dtype, 5);
    for (int64_t b = 0; b < kBlock; ++b) {
      for (int64_t row = b * 2 * kv_heads * kBlock; row < (b + 1) * 2 * kv_heads * kBlock; ++row) {
        if (row % kBlock < b) continue;
        std::fill_n(cache.begin() + row * dim, dim, std::nanf(""));
      }
    }
    args_.cache = put_matrix(harness, cache, kBlocks * 2 * kv_heads * kBlock, dim, dtype).data;
    args_.cache_dtype = dtype;
    q_values_ = random_values(static_cast<size_t>(kMostRows * cols_), dtype, 6, 2.0f);
    args_.q = put_matrix(harness, q_values_, kMostRows, cols_, dtype);
    args_.out = fresh_matrix(harness, kMostRows, cols_, dtype);
    reference_ = fresh_matrix(harness, kMostRows, cols_, dtype);
    args_.inputs.query_start = harness.fresh<int32_t>(kMostRows + 1);
    args_.inputs.seq_lens = harness.fresh<int32_t>(kMostRows);
    args_.inputs.row_slot = harness.fresh<int32_t>(kMostRows);
    live_ = harness.fresh<int32_t>(2);
    table_ = harness.fresh<int32_t>((kMostRows + 1) * kMaxBlocks);
    args_.block_table = table_;
    args_.max_blocks = kMaxBlocks;
    args_.q_heads = kGroup * kv_heads;
    args_.kv_heads = kv_heads;
    args_.head_dim = dim;
    args_.block_size = kBlock;
    args_.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    shares_ = harness.fresh<int32_t>(static_cast<size_t>(key_shares_ints()));
    args_.shares = shares_;
    between_ = harness.fresh<int32_t>(1);
  }

  // The key: sizes and whether all its rows have one token.
  void set_key(int32_t tokens, int32_t reqs, bool uniform) {
    args_.tokens = {tokens, live_};
    args_.reqs = {reqs, live_ + 1};
    args_.uniform_query_len = uniform ? 1 : 0;
  }
  // What prepare_inputs would write: rows of `tokens[r]` new tokens that end at `lengths[r]`.
  void set_step(const std::vector<int32_t>& tokens, const std::vector<int32_t>& lengths) {
    const auto live = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> starts = {0}, lens = lengths, slots, table;
    for (int32_t r = 0; r < args_.reqs.padded; ++r) {
      starts.push_back(starts.back() + (r < live ? tokens[static_cast<size_t>(r)] : 0));
      slots.push_back(r < live ? r : kMostRows);
      if (r >= live) lens.push_back(1);
      for (int32_t b = 0; r < live && b < kMaxBlocks; ++b) {
        const int32_t left = lengths[static_cast<size_t>(r)] - b * kBlock;
        table.push_back(left >= kBlock ? kBlock + (r * 7 + b * 13) % (kBlocks - kBlock)
                                       : std::max(left, 0));
      }
    }
    live_tokens_ = starts.back();
    const auto put = [this](const int32_t* to, const std::vector<int32_t>& values) {
      if (!values.empty()) {
        harness_.upload(const_cast<int32_t*>(to), values.data(), values.size() * sizeof(int32_t));
      }
    };
    put(args_.inputs.query_start, starts);
    put(args_.inputs.seq_lens, lens);
    put(args_.inputs.row_slot, slots);
    put(table_, table);
    put(live_, {live_tokens_, live});
  }
  void set_decodes(int32_t live, int32_t turn) {
    std::vector<int32_t> lengths;
    for (int32_t r = 0; r < live; ++r) {
      lengths.push_back(r == 1 ? 700 : 1 + (r * 29 + turn * 17) % (r % 16 == 3 ? 150 : 40));
    }
    set_step(std::vector<int32_t>(static_cast<size_t>(live), 1), lengths);
  }

  // What a step launches once before attention, for any number of requests, and as a linear does it
  // keeps attention from starting before this has ended (P-7).
  void share(const AttentionArgs& args) {
    share_keys(harness_.stream(), share_keys_for(args, shares_));
    check_cuda(cudaMemsetAsync(between_, 0, 4, launcher(harness_.stream()).stream),
               "cudaMemsetAsync");
  }
  void share() { share(args_); }

  // A replay of `graph`, into a poisoned output, against the reference.
  void check(Captured& graph) {
    const size_t bytes = static_cast<size_t>(args_.tokens.padded * cols_) * size_of(dtype_);
    const cudaStream_t on = launcher(harness_.stream()).stream;
    check_cuda(cudaMemsetAsync(args_.out.data, 0xff, bytes, on), "cudaMemsetAsync");
    graph.replay();
    AttentionArgs plain = args_;
    plain.out = reference_;
    attention_simple(harness_.stream(), plain);
    const auto got = read(args_.out), expected = read(reference_);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / cols_;
      const float bound = row < live_tokens_ ? 1.2e-2f + std::abs(expected[i]) / 128 : 0.0f;
      ASSERT_TRUE(std::abs(got[i] - expected[i]) <= bound && (row < live_tokens_ || got[i] == 0))
          << "token " << row << " of " << live_tokens_ << " live, column "
          << static_cast<int64_t>(i) % cols_ << ": " << got[i] << ", not " << expected[i];
    }
    expect_counts_are_zero(harness_);
  }
  // Every live count of a decode key, in turns, through one graph.
  void check_decodes(int32_t size, const Kernel& kernel) {
    set_key(size, size, true);
    set_decodes(size, 0);
    const auto run = [&] {
      share();
      kernel(harness_.stream(), args_);
    };
    run();
    Captured graph(harness_.stream(), run);
    int32_t turn = 0;
    for (const int32_t live : live_counts(size)) {
      SCOPED_TRACE(testing::Message() << live << " of " << size << " rows live");
      set_decodes(live, ++turn);
      check(graph);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  const AttentionArgs& args() const { return args_; }

 private:
  std::vector<float> read(const Matrix& m) {
    const auto count = static_cast<size_t>(args_.tokens.padded * cols_);
    if (dtype_ == DType::kFloat32) return harness_.get(static_cast<const float*>(m.data), count);
    const auto bits = harness_.get(static_cast<const uint16_t*>(m.data), count);
    std::vector<float> values(count);
    std::transform(bits.begin(), bits.end(), values.begin(), from_half);
    return values;
  }

  Harness& harness_;
  DType dtype_;
  int64_t cols_;
  std::vector<float> q_values_;
  Matrix reference_;
  int32_t* live_ = nullptr;  // tokens, then requests
  int32_t* table_ = nullptr;
  int32_t live_tokens_ = 0;
  int32_t *shares_ = nullptr, *between_ = nullptr;
  AttentionArgs args_;
};

}  // namespace refrain::kernels
