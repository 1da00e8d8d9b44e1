#pragma once
// lora_shrink and lora_expand: every output has one sum in one order, so that a row's bits depend
// on nothing beside it. Bound by the adapter's bytes: a decode row reads them once, kLoraBlock sums
// at a time, so that they do not wait for each other.

#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

inline constexpr int kLoraBlock = 4;

// `count` outputs of a row: its products with as many rows of a or b, `stride` apart.
template <class S, int count, class In, class T>
void lora_outputs(const In* in, const T* a, int64_t cols, int64_t stride, float* out) {
  typename S::Reg sums[count];
  for (auto& sum : sums) sum = S::zero();
  int64_t c = 0;
  for (; c + 16 <= cols; c += 16) {
    const auto x = S::load(in + c);
    for (int i = 0; i < count; ++i) sums[i] = S::fma(x, S::load(a + i * stride + c), sums[i]);
  }
  if (const int left = static_cast<int>(cols - c); left > 0) {
    const auto x = S::load_n(in + c, left);
    for (int i = 0; i < count; ++i)
      sums[i] = S::fma(x, S::load_n(a + i * stride + c, left), sums[i]);
  }
  for (int i = 0; i < count; ++i) out[i] = S::sum(sums[i]);
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
      lora_outputs<S, kLoraBlock>(in, a + j * args.cols, args.cols, args.cols, out + j);
      continue;
    }
    for (; j < end; ++j) lora_outputs<S, 1>(in, a + j * args.cols, args.cols, args.cols, out + j);
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
  const int64_t stride = int64_t{places.count} * places.max_rank, live = live_rows(args.rows);
  int64_t begin = 0;
  for (int32_t part = 0; part < places.parts; ++part) {
    const int64_t part_cols = args.part_end[part] - begin;
    const Range range = share_of(part_cols, team, 16);
    for (int64_t row = 0; row < live; ++row) {
      const int64_t place = args.adapter[row];
      const int64_t rank = place < 0 ? 0 : places.ranks[place * places.rank_stride + part];
      if (rank == 0) continue;
      const float* in = args.in + row * width + int64_t{part} * places.max_rank;
      const T* b = static_cast<const T*>(args.b) + begin * stride + place * places.max_rank;
      for (int64_t c = range.begin; c < range.end; c += 16) {
        const int64_t n = range.end - c < 16 ? range.end - c : 16;
        float sums[16] = {};
        int64_t i = 0;
        for (; i + kLoraBlock <= n; i += kLoraBlock)
          lora_outputs<S, kLoraBlock>(in, b + (c + i) * stride, rank, stride, sums + i);
        for (; i < n; ++i) lora_outputs<S, 1>(in, b + (c + i) * stride, rank, stride, sums + i);
        const auto out = load16<S>(args.out, row, begin + c, n);
        store16<S>(args.out, row, begin + c, n, S::add(out, S::load(sums)));
      }
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
