#pragma once
// Barriers in shared memory (mbarrier), those of a cluster of blocks, and shared memory of the
// cluster's other blocks: one instruction a function.

#include <cstdint>

namespace refrain::kernels {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// What a copy has brought, which a barrier has said.
__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Copies and blocks of the cluster see the barriers that this thread has initialised; blocks after
// a barrier of the cluster.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival, and `bytes` that copies bring.
__device__ inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void arrive(uint32_t barrier, uint32_t arrivals = 1) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void wait_barrier(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      " @done bra ended;\n bra again;\nended:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// Of another block of the cluster: where its copy of this block's shared `address` lies.
__device__ inline uint32_t of_block(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// From this block's shared memory; the barrier there counts the bytes.
__device__ inline void copy_to_block(uint32_t there, uint32_t from, uint32_t bytes,
                                     uint32_t barrier_there) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(there),
      "r"(from), "r"(bytes), "r"(barrier_there)
      : "memory");
}
// Four bytes; the barrier there counts them.
__device__ inline void store_at_block(uint32_t there, float value, uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
      "r"(__float_as_uint(value)), "r"(barrier_there)
      : "memory");
}
// An arrival that orders nothing. Whoever is arrived at waits for it before it ends.
__device__ inline void arrive_at_block(uint32_t barrier_there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_there) : "memory");
}
__device__ inline void wait_cluster_barrier(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      " @done bra ended;\n bra again;\nended:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

__device__ inline uint32_t block_of_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster have come here; orders nothing but initialised barriers.
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace refrain::kernels
