// CG-37: every attention and sampling kernel at every captured size with 1, 2, 3, half and all rows
// live, none too, in chains of replays of one graph; outputs and whatever was not written are
// poisoned, padded rows read as zeros, and no count is left behind. The reference is
// attention_simple, which AttentionTest holds to double precision.
#include "tests/gpu/ops/paged_batch.h"
#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

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
      batch.check_decodes(size, [](StreamRef on, const AttentionArgs& args) {
        attention_stream(on, args, /*beside=*/false, /*behind_prefix=*/false);
      });
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(can_attend_stream(stream(), batch.args()));
    AttentionArgs without = batch.args();
    without.shares = nullptr;
    EXPECT_FALSE(can_attend_stream(stream(), without));
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
        const auto run = [&] {
          batch.share();
          (table().*kernel)(stream(), batch.args());
        };
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
      Captured graph(stream(), [&] {
        batch.share(exact);
        table().attention(stream(), exact);
      });
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
        batch.share();
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
