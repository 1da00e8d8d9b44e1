#pragma once
// Products of a group of four warps (wgmma): 64 rows of one operand in shared memory times the rows
// of another, 16 columns of both at a time, into float32. Rows of both are of 64 columns: 128
// bytes, swizzled as the copy engine does, eight rows after 1024 bytes.

#pragma nv_diagnostic push
#pragma nv_diag_suppress 20012  // an annotation without effect in CUTLASS; in our code an error
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cute/arch/mma_sm90_gmma.hpp>
#pragma nv_diagnostic pop

#include <cstdint>
#include <utility>

namespace refrain::kernels {

inline constexpr int kAtom = 64;  // columns that are swizzled together

// Of rows that start there, a multiple of 1024, or 32 bytes further for each 16 columns.
__device__ inline uint64_t matrix_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (uint64_t{1} << 16) |
         (uint64_t{64} << 32) | (uint64_t{1} << 62);
}

namespace gmma = cute::SM90::GMMA;
template <int kRows>  // of the second operand
struct Wgmma;
#define REFRAIN_WGMMA(rows) \
  template <>               \
  struct Wgmma<rows> : gmma::MMA_64x##rows##x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K> {}
REFRAIN_WGMMA(16);
REFRAIN_WGMMA(24);
REFRAIN_WGMMA(32);
REFRAIN_WGMMA(40);
REFRAIN_WGMMA(48);
REFRAIN_WGMMA(56);
REFRAIN_WGMMA(64);
REFRAIN_WGMMA(72);
REFRAIN_WGMMA(80);
REFRAIN_WGMMA(112);
REFRAIN_WGMMA(128);
REFRAIN_WGMMA(144);
REFRAIN_WGMMA(160);
REFRAIN_WGMMA(192);
REFRAIN_WGMMA(224);
REFRAIN_WGMMA(256);
#undef REFRAIN_WGMMA

template <int kRows, size_t... i>
__device__ inline void multiply_each(uint64_t a, uint64_t b, float (&sum)[kRows / 2], bool add,
                                     std::index_sequence<i...> /*each*/) {
  Wgmma<kRows>::fma(a, b, sum[i]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

// sum = a · b, plus sum if `add`; begins it. A lane of warp w has of every eight rows of b, pair of
// registers after pair: two neighbouring ones, for row 16 w + lane / 4 of a, then for the one eight
// rows further.
template <int kRows>
__device__ inline void multiply(uint64_t a, uint64_t b, float (&sum)[kRows / 2], bool add) {
  multiply_each<kRows>(a, b, sum, add, std::make_index_sequence<kRows / 2>());
}
// Before the first multiply that uses these registers.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the last kLeft groups that were committed are done.
template <int kLeft>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// After wait_products<0>: nothing reads them before.
template <size_t kCount>
__device__ inline void take_products(float (&sum)[kCount]) {
#pragma unroll
  for (float& value : sum) asm volatile("" : "+f"(value)::"memory");
}

}  // namespace refrain::kernels
