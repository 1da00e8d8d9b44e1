#pragma once
// Sizes that the CUDA kernels can take; checked in check_args.cpp.

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

inline constexpr int32_t kMaxNormCols = 16384;     // a row in the registers of 1024 threads
inline constexpr int32_t kMaxHeadDim = 256;        // a head in the registers of a warp
inline constexpr int32_t kMaxGroup = 64;           // query heads a KV head: a tile of queries
inline constexpr int32_t kMaxStreamReqs = 512;     // of attention_stream: a plan in shared memory
inline constexpr int32_t kMaxStreamBlocks = 256;   // likewise
inline constexpr int32_t kMaxArrivals = 4096;      // counts that a launcher keeps for a kernel
inline constexpr int32_t kMaxVocab = 1 << 18;      // sums of integer weights fit 64 bits
inline constexpr int32_t kMaxStepReqs = 48 << 10;  // their starts lie in shared memory

// fused_linear: rows of a launch; columns and elements that a block norms in shared memory.
inline constexpr int32_t kFewRows = kPeerSumRows;
inline constexpr int32_t kGemvRows = 2;  // of a linear alone; of more linear_cluster is faster
inline constexpr int32_t kMaxFusedNormCols = 8192;
inline constexpr int32_t kMaxFusedNormElements = 16384;
inline constexpr int32_t kClusterRows = 80;   // linear_cluster, and fused_linear without a norm
inline constexpr int32_t kUnitNormRows = 48;  // of those of a fused_linear with a unit norm
inline constexpr int32_t kSiluRows = 256;     // linear_silu, and fused_linear with SiLU·mul alone
inline constexpr int32_t kMaxWideBlocks = 144;  // of linear_silu and linear_best: a whole GH100
inline constexpr int32_t kMaxLoraCols = 512;    // lora_linear: places * max_rank
inline constexpr int32_t kMaxFusedGroup = 8;    // rope_attention: query heads a KV head
// rope_attention of more than kFewRows: requests times KV heads; attention_stream has those of
// more.
inline constexpr int32_t kMaxRopeUnits = 127;

}  // namespace refrain::kernels
