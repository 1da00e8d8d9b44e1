#include "tests/ops/attention_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/attention_units.h"

namespace refrain::kernels {
namespace {

// Positions of a request that have values of their own; room for as many, or more, in its table.
constexpr int32_t kPositions = 4096;
constexpr int32_t kLeastRoom = 256;

int32_t room_for(const std::vector<RowSpec>& rows) {
  int32_t room = kLeastRoom;
  for (const RowSpec& row : rows) room = std::max(room, row.context + row.query_len);
  return room;
}

}  // namespace

AttentionCase::AttentionCase(Harness& harness, HeadShape shape, DType dtype,
                             std::vector<RowSpec> rows, int padded, int32_t sliding_window,
                             bool wide_rows, int32_t shared_prefix)
    : harness_(harness),
      shape_(shape),
      dtype_(dtype),
      rows_(std::move(rows)),
      padded_(padded),
      wide_rows_(wide_rows),
      shared_prefix_(shared_prefix),
      max_blocks_((room_for(rows_) + shape.block_size - 1) / shape.block_size) {
  const auto requests = static_cast<int32_t>(rows_.size());
  std::vector<int32_t> blocks(requests * max_blocks_);
  std::iota(blocks.begin(), blocks.end(), 1);  // block 0 is reserved
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(7));
  block_table_ = blocks;
  for (int32_t r = 1; r < requests; ++r)
    std::copy_n(block_table_.begin(), shared_prefix / shape.block_size,
                block_table_.begin() + r * max_blocks_);
  block_table_.resize((requests + padded_ + 1) * max_blocks_, 0);

  std::vector<int32_t> query_start = {0}, seq_lens, row_slot;
  std::vector<float> q;
  for (int32_t r = 0; r < requests; ++r) {
    for (int32_t i = 0; i < rows_[r].query_len; ++i) {
      const auto one = query(r, rows_[r].context + i);
      q.insert(q.end(), one.begin(), one.end());
    }
    live_tokens_ += rows_[r].query_len;
    query_start.push_back(live_tokens_);
    seq_lens.push_back(rows_[r].context + rows_[r].query_len);
    row_slot.push_back(r);
  }
  for (int i = 0; i < padded_; ++i) {
    query_start.push_back(live_tokens_);
    seq_lens.push_back(1);
    row_slot.push_back(requests);
  }
  q.resize((live_tokens_ + padded_) * cols(), std::nanf(""));  // poison, as in padded rows
  put_cache();
  args_.q = put_matrix(harness_, q, live_tokens_ + padded_, cols(), dtype_, wide_rows ? 24 : 11);
  args_.inputs.query_start = harness_.put(query_start);
  args_.inputs.seq_lens = harness_.put(seq_lens);
  args_.inputs.row_slot = harness_.put(row_slot);
  args_.block_table = harness_.put(block_table_);
  args_.max_blocks = max_blocks_;
  args_.q_heads = shape_.q_heads;
  args_.kv_heads = shape_.kv_heads;
  args_.head_dim = shape_.head_dim;
  args_.block_size = shape_.block_size;
  args_.sliding_window = sliding_window;
  args_.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  args_.tokens = {live_tokens_ + padded_, put_int(harness_, live_tokens_)};
  const bool decode = std::all_of(rows_.begin(), rows_.end(),
                                  [](const RowSpec& row) { return row.query_len == 1; });
  args_.uniform_query_len = decode ? 1 : 0;
  args_.reqs = {requests + padded_, put_int(harness_, requests)};
}

std::vector<float> AttentionCase::draw(int32_t kind, int32_t request, int32_t position,
                                       int32_t heads) const {
  const int32_t of = kind != 0 && position < shared_prefix_ ? 0 : request;
  const auto seed = static_cast<uint32_t>((of * kPositions + position) * 3 + kind);
  return random_values(heads * shape_.head_dim, dtype_, seed, 2.0f);
}
std::vector<float> AttentionCase::query(int32_t request, int32_t position) const {
  return draw(0, request, position, shape_.q_heads);
}
std::vector<float> AttentionCase::key(int32_t request, int32_t position) const {
  return draw(1, request, position, shape_.kv_heads);
}
std::vector<float> AttentionCase::value(int32_t request, int32_t position) const {
  return draw(2, request, position, shape_.kv_heads);
}

int64_t AttentionCase::cache_rows() const {
  const auto total_blocks = static_cast<int64_t>(rows_.size()) * max_blocks_ + 1;
  return total_blocks * 2 * shape_.kv_heads * shape_.block_size;
}

void AttentionCase::put_cache() {
  const int64_t dim = shape_.head_dim;
  const int64_t cache_rows = this->cache_rows();
  std::vector<float> cache(cache_rows * dim, std::nanf(""));
  for (int32_t r = 0; r < static_cast<int32_t>(rows_.size()); ++r) {
    for (int32_t p = 0; p < rows_[r].context + rows_[r].query_len; ++p) {
      const int64_t block = block_table_[r * max_blocks_ + p / shape_.block_size];
      const auto k = key(r, p), v = value(r, p);
      for (int64_t h = 0; h < shape_.kv_heads; ++h) {
        const int64_t offset = p % shape_.block_size;
        const int64_t k_row = ((block * 2) * shape_.kv_heads + h) * shape_.block_size + offset;
        const int64_t v_row = ((block * 2 + 1) * shape_.kv_heads + h) * shape_.block_size + offset;
        std::copy_n(k.begin() + h * dim, dim, cache.begin() + k_row * dim);
        std::copy_n(v.begin() + h * dim, dim, cache.begin() + v_row * dim);
      }
    }
  }
  args_.cache = put_matrix(harness_, cache, cache_rows, dim, dtype_).data;
  args_.cache_dtype = dtype_;
}

int32_t AttentionCase::make_plan(int32_t split_tokens, bool known, bool cascade, bool flashinfer) {
  const auto requests = static_cast<int32_t>(rows_.size());
  const AttentionPlanShape shape{live_tokens_ + padded_, requests + padded_, split_tokens,
                                 shape_.q_heads / shape_.kv_heads, max_blocks_};
  std::vector<int32_t> slots, tokens, computed, plan(static_cast<size_t>(shape.ints()), -1);
  for (const RowSpec& row : rows_) {
    slots.push_back(static_cast<int32_t>(slots.size()));
    tokens.push_back(row.query_len);
    computed.push_back(known ? row.context : -1);
  }
  const auto chunk = std::ranges::find_if(rows_, [&](const RowSpec& row) {
    return row.query_len > split_tokens || row.context < shared_prefix_;
  });
  const auto sharing = static_cast<int32_t>(chunk - rows_.begin());
  const AttentionRows of{slots,
                         tokens,
                         computed,
                         cascade ? shared_prefix_ : 0,
                         cascade ? sharing : 0,
                         args_.sliding_window};
  if (flashinfer) {
    make_flashinfer_plan(shape, of, plan.data());
  } else {
    make_attention_plan(shape, of, plan.data());
    EXPECT_LE(plan[kPlanHeader + live_tokens_], shape.max_parts());
  }
  const int32_t units = plan[0];
  EXPECT_LE(units, shape.max_units(live_tokens_, requests, cascade));
  args_.planned.plan = harness_.put(plan);
  const std::vector<float> parts(
      static_cast<size_t>(shape.max_parts()) * shape_.q_heads * (shape_.head_dim + 2),
      std::nanf(""));
  args_.planned.parts = harness_.put(parts);
  args_.planned.shape = shape;
  args_.planned.max_units = shape.max_units(live_tokens_ + padded_, requests + padded_, cascade);
  return units;
}

void AttentionCase::launch(Kernel<AttentionArgs> KernelTable::*kernel) {
  const bool dense = kernel == &KernelTable::flashinfer_attention;  // it takes no others
  launch(harness_.table().*kernel, dense ? 0 : wide_rows_ ? 8 : 4);
}

void AttentionCase::launch(Kernel<AttentionArgs> kernel, int gap) {
  args_.out = fresh_matrix(harness_, live_tokens_ + padded_, cols(), dtype_, gap);
  share_keys();
  kernel(harness_.stream(), args_);
}

std::vector<float> AttentionCase::run(Kernel<AttentionArgs> KernelTable::*kernel) {
  launch(kernel);
  return output();
}

std::vector<float> AttentionCase::run_kernel(Kernel<AttentionArgs> kernel) {
  launch(kernel, 8);
  return output();
}

// Where the device's attention may read them: once, as a step does for all its layers.
void AttentionCase::share_keys() {
  const KernelTable& table = harness_.table();
  if (table.share_keys == nullptr || args_.shares != nullptr) return;
  auto* shares = harness_.fresh<int32_t>(static_cast<size_t>(table.key_shares_ints));
  table.share_keys(harness_.stream(), share_keys_for(args_, shares));
  harness_.get(shares, 1);  // attention reads them before its predecessor has ended (P-7)
  args_.shares = shares;
}

std::vector<float> AttentionCase::output() {
  auto out = get_matrix(harness_, args_.out, live_tokens_ + padded_, cols());
  for (size_t i = live_tokens_ * cols(); i < out.size(); ++i) {
    EXPECT_EQ(out[i], 0.0f) << "a padded token";
  }
  out.resize(live_tokens_ * cols());
  return out;
}

std::vector<double> AttentionCase::expected() const {
  std::vector<double> out;
  const int64_t dim = shape_.head_dim;
  for (int32_t r = 0; r < static_cast<int32_t>(rows_.size()); ++r) {
    std::vector<std::vector<float>> keys, values;
    for (int32_t p = 0; p < rows_[r].context + rows_[r].query_len; ++p) {
      keys.push_back(key(r, p));
      values.push_back(value(r, p));
    }
    for (int32_t p = rows_[r].context; p < rows_[r].context + rows_[r].query_len; ++p) {
      const auto q = query(r, p);
      const int32_t window = args_.sliding_window;
      const int32_t first = window > 0 ? std::max(0, p - window + 1) : 0;
      for (int64_t h = 0; h < shape_.q_heads; ++h) {
        const int64_t kv = h / (shape_.q_heads / shape_.kv_heads);
        double total = 0;
        std::vector<double> sum(dim, 0.0);
        for (int32_t j = first; j <= p; ++j) {
          const std::vector<float>&k = keys[j], &v = values[j];
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) score += double{q[h * dim + d]} * k[kv * dim + d];
          const double weight = std::exp(score * args_.scale);
          total += weight;
          for (int64_t d = 0; d < dim; ++d) sum[d] += weight * v[kv * dim + d];
        }
        for (const double s : sum) out.push_back(s / total);
      }
    }
  }
  return out;
}

}  // namespace refrain::kernels
