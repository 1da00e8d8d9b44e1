#pragma once
// Arguments of the ops of LoRA adapters.

#include "kernels/core/op_args.h"

namespace refrain::kernels {

// Rows that take the same adapter, kRows at most, in rising order: what a kernel of many rows
// multiplies together.
struct LoraGroup {
  static constexpr int kRows = 16;
  // Groups a row there is room for: the first, one for its rows, one that its place has not filled.
  static constexpr int kPerRow = 3;
  int32_t place, count;
  int32_t rows[kRows];
};
inline constexpr int32_t kLoraFewRows = 64;  // kernels of so many take each row by itself

// Which adapter each token and each logit row of a batch takes: that of its request's slot. -1:
// none; so have padded rows. And their groups by place, behind a first one whose `count` says how
// many they are: none of kLoraFewRows padded rows or less.
struct LoraRowsArgs {
  const int32_t* query_start = nullptr;  // [R+1]
  const int32_t* row_slot = nullptr;     // [R]
  const int32_t* sample_slot = nullptr;  // [N]
  const SlotParams* params = nullptr;    // [S+1]
  int32_t* of_tokens = nullptr;          // [T]
  int32_t* of_samples = nullptr;         // [N]
  LoraGroup* token_groups = nullptr;     // [T * kPerRow]
  LoraGroup* sample_groups = nullptr;    // [N * kPerRow]
  Rows tokens, reqs, samples;
};

inline constexpr int kMaxLoraParts = 3;    // linears that are one: q, k, v
inline constexpr int kMaxLoraPlaces = 64;  // adapters of one step

// The adapters of one linear, by place. A part is one of the linears that the weight is made of;
// `ranks` of a part that the adapter leaves alone is 0.
struct LoraPlaces {
  const int32_t* ranks = nullptr;  // [places, rank_stride], those of this linear's parts first
  int32_t rank_stride = 0;
  int32_t parts = 1;
  int32_t max_rank = 0;
  int32_t count = 0;  // places
};

// out[m, p, j] = in[m, :] · a[adapter[m], p, j, :] for j below the part's rank; rows without an
// adapter are left as they are.
struct LoraShrinkArgs {
  Matrix in;                          // [M, K]
  const int32_t* adapter = nullptr;   // [M] place, -1: none
  const LoraGroup* groups = nullptr;  // of lora_rows
  const void* a = nullptr;            // [places, parts, max_rank, K] of in's type
  LoraPlaces places;
  float* out = nullptr;  // [M, parts, max_rank]
  int32_t cols = 0;      // K
  Rows rows;
};

// Of an embedding, where lora_shrink is of a linear: out[m, j] = a[adapter[m], ids[m] -
// vocab_begin, j] for j below the adapter's rank, 0 where the id is outside [vocab_begin,
// vocab_end). Rows without an adapter are left as they are.
struct LoraEmbedArgs {
  const int32_t* ids = nullptr;      // [M]
  const int32_t* adapter = nullptr;  // [M]
  const void* a = nullptr;           // [places], each [vocab_rows, its rank] of max_rank's room
  DType dtype = DType::kFloat32;     // of a
  LoraPlaces places;                 // of one part
  int32_t vocab_rows = 0, vocab_begin = 0, vocab_end = 0;
  float* out = nullptr;  // [M, max_rank]
  Rows rows;
};

// out[m, n] += sum over j of in[m, p, j] * b[adapter[m], j, n], n of part p; b holds the adapter's
// scale. Rows without an adapter keep their bits.
struct LoraExpandArgs {
  const float* in = nullptr;          // [M, parts, max_rank]
  const int32_t* adapter = nullptr;   // [M]
  const LoraGroup* groups = nullptr;  // of lora_rows
  const void* b = nullptr;            // [N, places, max_rank]
  LoraPlaces places;
  int32_t part_end[kMaxLoraParts] = {};  // column after the part's last
  Matrix out;                            // [M, N]; b is of its type
  Rows rows;
};

// A linear and its adapters, of up to 80 rows. y = linear's own meaning plus lora_expand of
// lora_shrink of its input, whose result is rounded to bfloat16 between; linear.out = y or, with
// silu_mul, as in FusedLinearArgs, rounded once.
struct LoraLinearArgs {
  LinearArgs linear;
  bool silu_mul = false;             // no bias, no residual
  const int32_t* adapter = nullptr;  // [M] place, -1: none
  const void* a = nullptr;           // as in LoraShrinkArgs
  const void* b = nullptr;           // as in LoraExpandArgs
  LoraPlaces places;
  int32_t part_end[kMaxLoraParts] = {};  // column of y after the part's last
  void* shrunk = nullptr;                // [M, parts, places, max_rank] bfloat16, of this op alone
};

}  // namespace refrain::kernels
