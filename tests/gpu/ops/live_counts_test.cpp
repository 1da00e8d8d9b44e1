// CG-37: every attention and sampling kernel at every captured size with 1, 2, 3, half and all rows
// live, none too, in chains of replays of one graph; outputs and whatever was not written are
// poisoned, padded rows read as zeros, and no count is left behind. The reference is
// attention_simple, which AttentionTest holds to double precision.
#include <cmath>
#include <functional>

#include "kernels/cuda/ops.h"
#include "tests/gpu/ops/captured.h"
#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

constexpr DType kBf16 = DType::kBFloat16;
constexpr int32_t kBlock = 16, kMaxBlocks = 64, kBlocks = 200, kMostRows = 512;
constexpr int32_t kGroup = 4;

float from_half(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

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
    kernel(harness_.stream(), args_);
    Captured graph(harness_.stream(), [&] { kernel(harness_.stream(), args_); });
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
  AttentionArgs args_;
};

class LiveCounts : public OpsTest {
 protected:
  template <class F>
  void for_each_shape(F f) {
    for (const int32_t kv_heads : {1, 2, 4, 8}) {
      for (const int32_t dim : {64, 128}) {
        SCOPED_TRACE(testing::Message() << kv_heads << " KV heads of " << dim);
        f(kv_heads, dim);
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_P(LiveCounts, CG37DecodeAttentionAtEveryCapturedSize) {
  for_each_shape([&](int32_t kv_heads, int32_t dim) {
    PagedBatch batch(harness(), kv_heads, dim);
    for (const int32_t size : captured_sizes()) {
      batch.check_decodes(size, table().attention);
      if (HasFatalFailure()) return;
    }
  });
}

// The kernel for many requests, which dispatch takes for many requests and heads alone.
TEST_P(LiveCounts, CG37AttentionStreamAtEveryCapturedSize) {
  for_each_shape([&](int32_t kv_heads, int32_t dim) {
    PagedBatch batch(harness(), kv_heads, dim);
    for (const int32_t size : captured_sizes()) {
      batch.check_decodes(size, attention_stream);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(can_attend_stream(stream(), batch.args()));
  });
}

TEST_P(LiveCounts, CG37AttentionOfFloat32) {
  PagedBatch batch(harness(), 2, 64, DType::kFloat32);
  for (const int32_t size : {1, 4, 64, 512}) batch.check_decodes(size, table().attention);
}

// Keys of FULL that hold prompts and decodes, with the library's prefill kernel and our own.
TEST_P(LiveCounts, CG37MixedKeysOfAnyContent) {
  for_each_shape([&](int32_t kv_heads, int32_t dim) {
    PagedBatch batch(harness(), kv_heads, dim);
    for (const int32_t size : {8, 64, 136, 256, 512}) {
      for (const auto kernel : {&KernelTable::attention, &KernelTable::plain_attention}) {
        batch.set_key(size, std::min(size, 256), false);
        const auto run = [&] { (table().*kernel)(stream(), batch.args()); };
        batch.set_step({size}, {size});
        run();
        Captured graph(stream(), run);
        const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> steps = {
            {{size}, {size}},
            {{1}, {33}},
            {{size - 3, 1, 1}, {size + 40, 700, 5}},
            {{5}, {90}},
            {{1, 1, 1}, {16, 1, 300}},
            {{}, {}},
            {{1, size / 2, 1}, {100, size / 2, 2}},
            {{size}, {size + 100}}};
        for (const auto& [tokens, lengths] : steps) {
          SCOPED_TRACE(testing::Message() << tokens.size() << " rows of " << size
                                          << ", the first of " << (tokens.empty() ? 0 : tokens[0]));
          batch.set_step(tokens, lengths);
          batch.check(graph);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

// Launches outside of graphs, whose counts are the batch's own.
TEST_P(LiveCounts, CG36AttentionOfExactCounts) {
  for_each_shape([&](int32_t kv_heads, int32_t dim) {
    PagedBatch batch(harness(), kv_heads, dim);
    const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> steps = {
        {{64}, {64}},
        {{300}, {300}},
        {{3}, {50}},
        {{1, 200, 1}, {100, 200, 2}},
        {{4, 40}, {4, 40}}};
    for (const auto& [tokens, lengths] : steps) {
      int32_t sum = 0;
      for (const int32_t count : tokens) sum += count;
      batch.set_key(sum, static_cast<int32_t>(tokens.size()), false);
      batch.set_step(tokens, lengths);
      AttentionArgs exact = batch.args();
      exact.tokens.live = exact.reqs.live = nullptr;
      Captured graph(stream(), [&] { table().attention(stream(), exact); });
      batch.check(graph);
      if (HasFatalFailure()) return;
    }
  });
}

// A step's sampling rows in fixed memory; a third of the rows is not plainly greedy.
class SampleRows {
 public:
  static constexpr int32_t kVocab = 1000;

  explicit SampleRows(Harness& harness) : harness_(harness) {
    const auto logits = random_values(size_t{kMostRows} * kVocab, DType::kFloat32, 3);
    for (int32_t r = 0; r < kMostRows; ++r) {
      const auto row = logits.begin() + r * kVocab;
      best_.push_back(static_cast<int32_t>(std::max_element(row, row + kVocab) - row));
    }
    std::vector<SlotParams> params(kMostRows + 1);
    for (int32_t r = 0; r <= kMostRows; ++r) {
      params[static_cast<size_t>(r)].temperature = r % 3 == 1 ? 0.8f : 0.0f;
      params[static_cast<size_t>(r)].top_k = r % 3 == 1 ? 1 : 0;
      params[static_cast<size_t>(r)].top_p = 1;
      params[static_cast<size_t>(r)].num_logprobs = r % 6 == 2 ? 1 : -1;
    }
    std::vector<int32_t> slots(kMostRows);
    std::iota(slots.begin(), slots.end(), 0);
    args_.logits = harness.put(logits);
    args_.shard_cols = args_.vocab_size = kVocab;
    args_.shard_stride = int64_t{kMostRows} * kVocab;
    args_.inputs.row_slot = harness.put(slots);
    args_.inputs.row_flags = harness.put(std::vector<uint8_t>(kMostRows, kRowSamples));
    args_.inputs.seq_lens = harness.put(std::vector<int32_t>(kMostRows, 10));
    args_.inputs.turn = harness.put(std::vector<uint32_t>{7});
    args_.slots.num_slots = kMostRows;
    args_.slots.vocab_size = kVocab;
    args_.slots.last_token = harness.fresh<int32_t>(kMostRows + 1);
    args_.slots.params = harness.put(params);
    args_.slots.output_count = harness.put(std::vector<int32_t>(kMostRows + 1, 0));
    args_.slots.in_prompt = harness.put(std::vector<uint8_t>(kMostRows + 1, 0));
    for (SampleOutputs& out : args_.outputs) {
      out.turn = harness.fresh<uint32_t>(1);
      out.tokens = harness.fresh<int32_t>(kMostRows);
      out.logprobs = harness.fresh<float>(kMostRows);
      out.top_tokens = harness.fresh<int32_t>(kMostRows * kMaxLogprobs);
      out.top_logprobs = harness.fresh<float>(kMostRows * kMaxLogprobs);
    }
    args_.scratch = harness.fresh<float>(size_t{kMostRows} * kVocab);
    live_ = harness.fresh<int32_t>(1);
  }

  void set_key(int32_t rows) { args_.rows = {rows, live_}; }
  void set_live(int32_t live) { harness_.upload(live_, &live, sizeof(live)); }
  void poison() {
    const cudaStream_t on = launcher(harness_.stream()).stream;
    const SampleOutputs& out = args_.outputs[7 % kTurns];
    check_cuda(cudaMemsetAsync(out.tokens, 0x77, kMostRows * 4, on), "cudaMemsetAsync");
    check_cuda(cudaMemsetAsync(args_.slots.last_token, 0x77, kMostRows * 4, on), "cudaMemsetAsync");
  }
  void check(int32_t live) {
    const auto rows = static_cast<size_t>(args_.rows.padded);
    const auto tokens = harness_.get(args_.outputs[7 % kTurns].tokens, rows);
    const auto last = harness_.get(args_.slots.last_token, rows);
    for (size_t r = 0; r < rows; ++r) {
      const bool here = static_cast<int32_t>(r) < live;
      ASSERT_EQ(tokens[r], here ? best_[r] : -1) << "row " << r << ", " << live << " live";
      ASSERT_EQ(last[r], here ? best_[r] : 0x77777777) << "slot " << r << ", " << live << " live";
    }
    expect_counts_are_zero(harness_);
  }
  const SampleArgs& args() const { return args_; }

 private:
  Harness& harness_;
  std::vector<int32_t> best_;
  int32_t* live_ = nullptr;
  SampleArgs args_;
};

TEST_P(LiveCounts, CG37SamplingAtEveryCapturedSize) {
  SampleRows rows(harness());
  for (const int32_t size : captured_sizes()) {
    rows.set_key(size);
    rows.set_live(size);
    const auto run = [&] { table().sample(stream(), rows.args()); };
    run();
    Captured graph(stream(), run);
    for (const int32_t live : live_counts(size)) {
      SCOPED_TRACE(testing::Message() << live << " of " << size << " rows live");
      rows.set_live(live);
      rows.poison();
      graph.replay();
      rows.check(live);
      if (HasFatalFailure()) return;
    }
  }
}

// Layers of attention and then sampling, as in a step: what one leaves behind would break another.
TEST_P(LiveCounts, CG37AStepOfAttentionAndSampling) {
  for (const int32_t dim : {64, 128}) {
    PagedBatch batch(harness(), 8, dim);
    SampleRows rows(harness());
    for (const int32_t size : {16, 128, 256, 512}) {
      batch.set_key(size, size, true);
      batch.set_decodes(size, 0);
      rows.set_key(size);
      rows.set_live(size);
      const auto run = [&] {
        for (int layer = 0; layer < 3; ++layer) table().attention(stream(), batch.args());
        table().sample(stream(), rows.args());
      };
      run();
      Captured graph(stream(), run);
      int32_t turn = 0;
      for (const int32_t live : live_counts(size)) {
        SCOPED_TRACE(testing::Message() << live << " of " << size << " rows live");
        batch.set_decodes(live, ++turn);
        rows.set_live(live);
        rows.poison();
        batch.check(graph);
        rows.check(live);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A grid has at most 65535 blocks along y.
TEST_P(LiveCounts, MoreRowsThanAGridHasBlocksAlongY) {
  constexpr int32_t kRows = 70000, kCols = 8;
  const auto values = random_values(size_t{kRows} * kCols, DType::kFloat32, 2);
  const Matrix in = put_matrix(harness(), values, kRows, kCols, DType::kFloat32);
  const Matrix out = fresh_matrix(harness(), kRows, kCols, DType::kFloat32);
  table().add(stream(), {in, in, out, kCols, {kRows, put_int(harness(), kRows)}});
  const auto sums = get_matrix(harness(), out, kRows, kCols);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(sums[i], 2 * values[i]) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Device, LiveCounts, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
