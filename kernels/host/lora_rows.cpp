#include "kernels/host/lora_rows.h"

#include <algorithm>

namespace refrain::kernels {
namespace {

void make_groups(const int32_t* adapter, int32_t rows, LoraGroup* groups) {
  int32_t last = 0;
  for (int32_t place = 0; place < kMaxLoraPlaces && rows > kLoraFewRows; ++place) {
    int32_t taken = LoraGroup::kRows;  // of the last group
    for (int32_t row = 0; row < rows; ++row) {
      if (adapter[row] != place) continue;
      if (taken == LoraGroup::kRows) {
        groups[++last].place = place;
        taken = 0;
      }
      groups[last].rows[taken] = row;
      groups[last].count = ++taken;
    }
  }
  groups[0].count = last;
}

}  // namespace

void lora_rows(const LoraRowsArgs& args, const Team& /*team*/) {
  std::fill_n(args.of_tokens, args.tokens.padded, -1);
  const int32_t live = live_rows(args.reqs);
  for (int32_t row = 0; row < live; ++row) {
    const int32_t adapter = args.params[args.row_slot[row]].adapter;
    std::fill(args.of_tokens + args.query_start[row], args.of_tokens + args.query_start[row + 1],
              adapter);
  }
  const int32_t samples = live_rows(args.samples);
  for (int32_t row = 0; row < args.samples.padded; ++row)
    args.of_samples[row] = row < samples ? args.params[args.sample_slot[row]].adapter : -1;
  make_groups(args.of_tokens, args.tokens.padded, args.token_groups);
  make_groups(args.of_samples, args.samples.padded, args.sample_groups);
}

void lora_embed(const LoraEmbedArgs& args, const Team& team) {
  const int64_t max_rank = args.places.max_rank;
  const Range range = share_of(live_rows(args.rows), team);
  for (int64_t row = range.begin; row < range.end; ++row) {
    const int64_t place = args.adapter[row];
    if (place < 0) continue;
    const int64_t rank = args.places.ranks[place * args.places.rank_stride];
    const int32_t id = args.ids[row];
    float* out = args.out + row * max_rank;
    if (id < args.vocab_begin || id >= args.vocab_end) {
      std::fill_n(out, rank, 0.0f);
      continue;
    }
    const int64_t at = place * args.vocab_rows * max_rank + (id - args.vocab_begin) * rank;
    if (args.dtype == DType::kFloat32) {
      std::copy_n(static_cast<const float*>(args.a) + at, rank, out);
    } else {
      std::transform(static_cast<const BFloat16*>(args.a) + at,
                     static_cast<const BFloat16*>(args.a) + at + rank, out,
                     [](BFloat16 x) { return to_float(x); });
    }
  }
}

}  // namespace refrain::kernels
