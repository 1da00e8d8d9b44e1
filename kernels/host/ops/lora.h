#pragma once
// lora_shrink and lora_expand: every output has one sum in one order, so that a row's bits depend
// on nothing beside it. Bound by the adapter's bytes: a decode row reads them once, kLoraBlock sums
// at a time, so that they do not wait for each other.

#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

inline constexpr int kLoraBlock = 4;

// `count` outputs of a row: its products with as many rows of a.
template <class S, class T, int count>
void shrink_outputs(const T* in, const T* a, int64_t cols, float* out) {
  typename S::Reg sums[count];
  for (auto& sum : sums) sum = S::zero();
  int64_t c = 0;
  for (; c + 16 <= cols; c += 16) {
    const auto x = S::load(in + c);
    for (int i = 0; i < count; ++i) sums[i] = S::fma(x, S::load(a + i * cols + c), sums[i]);
  }
  if (const int left = static_cast<int>(cols - c); left > 0) {
    const auto x = S::load_n(in + c, left);
    for (int i = 0; i < count; ++i) sums[i] = S::fma(x, S::load_n(a + i * cols + c, left), sums[i]);
  }
  for (int i = 0; i < count; ++i) out[i] = S::sum(sums[i]);
}

// 16 * count columns of a row, from b's line 0 on.
template <class S, class T, int count>
void expand_columns(const float* in, int64_t rank, const T* b, int64_t stride, T* out) {
  typename S::Reg sums[count];
  for (auto& sum : sums) sum = S::zero();
  for (int64_t j = 0; j < rank; ++j) {
    const auto x = S::broadcast(in[j]);
    for (int i = 0; i < count; ++i)
      sums[i] = S::fma(x, S::load(b + j * stride + int64_t{16} * i), sums[i]);
  }
  for (int i = 0; i < count; ++i)
    S::store(out + int64_t{16} * i, S::add(S::load(out + int64_t{16} * i), sums[i]));
}

// The last columns, fewer than 16.
template <class S, class T>
void expand_rest(const float* in, int64_t rank, const T* b, int64_t stride, T* out, int n) {
  auto sum = S::zero();
  for (int64_t j = 0; j < rank; ++j)
    sum = S::fma(S::broadcast(in[j]), S::load_n(b + j * stride, n), sum);
  S::store_n(out, S::add(S::load_n(out, n), sum), n);
}

template <class S, class T>
void shrink_rows(const LoraShrinkArgs& args, const Team& team) {
  const LoraPlaces& places = args.places;
  const int64_t width = int64_t{places.parts} * places.max_rank;
  // Threads share the parts of all rows in blocks of outputs: one row has work for all of them.
  const int64_t blocks = (places.max_rank + kLoraBlock - 1) / kLoraBlock;
  const int64_t in_row = places.parts * blocks;
  const Range range = share_of(int64_t{live_rows(args.rows)} * in_row, team);
  for (int64_t at = range.begin; at < range.end; ++at) {
    const int64_t row = at / in_row, part = at % in_row / blocks;
    const int64_t place = args.adapter[row];
    if (place < 0) continue;
    const int64_t rank = places.ranks[place * places.rank_stride + part];
    int64_t j = at % blocks * kLoraBlock;
    const int64_t end = j + kLoraBlock < rank ? j + kLoraBlock : rank;
    const T* in = static_cast<const T*>(args.in.data) + row * args.in.stride;
    const int64_t output = part * places.max_rank;
    const T* a = static_cast<const T*>(args.a) + (place * width + output) * args.cols;
    float* out = args.out + row * width + output;
    if (end - j == kLoraBlock) {
      shrink_outputs<S, T, kLoraBlock>(in, a + j * args.cols, args.cols, out + j);
      continue;
    }
    for (; j < end; ++j) shrink_outputs<S, T, 1>(in, a + j * args.cols, args.cols, out + j);
  }
}

template <class S>
void lora_shrink(const LoraShrinkArgs& args, const Team& team) {
  args.in.dtype == DType::kFloat32 ? shrink_rows<S, float>(args, team)
                                   : shrink_rows<S, BFloat16>(args, team);
}

// Threads share the columns.
template <class S, class T>
void expand_rows(const LoraExpandArgs& args, const Team& team) {
  const LoraPlaces& places = args.places;
  const int64_t width = int64_t{places.parts} * places.max_rank;
  const int64_t cols = args.part_end[places.parts - 1], live = live_rows(args.rows);
  int64_t begin = 0;
  for (int32_t part = 0; part < places.parts; ++part) {
    const int64_t part_cols = args.part_end[part] - begin;
    const Range range = share_of(part_cols, team, 16);
    for (int64_t row = 0; row < live; ++row) {
      const int64_t place = args.adapter[row];
      const int64_t rank = place < 0 ? 0 : places.ranks[place * places.rank_stride + part];
      if (rank == 0) continue;
      const float* in = args.in + row * width + int64_t{part} * places.max_rank;
      const T* b = static_cast<const T*>(args.b) + (place * cols + begin) * places.max_rank;
      T* out = static_cast<T*>(args.out.data) + row * args.out.stride + begin;
      int64_t c = range.begin;
      for (; c + 16 * kLoraBlock <= range.end; c += 16 * kLoraBlock)
        expand_columns<S, T, kLoraBlock>(in, rank, b + c, part_cols, out + c);
      for (; c + 16 <= range.end; c += 16)
        expand_columns<S, T, 1>(in, rank, b + c, part_cols, out + c);
      if (c < range.end)
        expand_rest<S, T>(in, rank, b + c, part_cols, out + c, static_cast<int>(range.end - c));
    }
    begin = args.part_end[part];
  }
}

template <class S>
void lora_expand(const LoraExpandArgs& args, const Team& team) {
  args.out.dtype == DType::kFloat32 ? expand_rows<S, float>(args, team)
                                    : expand_rows<S, BFloat16>(args, team);
}

}  // namespace refrain::kernels
