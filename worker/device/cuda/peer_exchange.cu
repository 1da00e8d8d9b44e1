// Bound by latency: one store over NVLink, one poll of local memory. A block owns a fixed 2 KiB of
// the message and counts its own exchanges, so messages of different sizes may follow each other.
//
// Why two buffers by parity are enough: before a block writes packets of exchange n + 2 it has had
// its peers' packets of n + 1, which a peer sends only after its kernel of exchange n is over and
// has read all of n's packets.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "worker/device/cuda/peer_exchange.h"

namespace refrain::worker {

namespace {

constexpr int kPollsALook = 512;  // between two looks at the clock and at the host's word
constexpr int kElements16 = 4;    // bfloat16 elements a thread holds

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__device__ void push(uint4* to, uint32_t low, uint32_t high, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(low), "r"(number),
               "r"(high), "r"(number)
               : "memory");
}

__device__ uint4 poll(const uint4* from) {
  uint4 packet;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z), "=r"(packet.w)
               : "l"(from)
               : "memory");
  return packet;
}

// False when the deadline passed or the host asked to stop; says so to everyone on this rank.
__device__ bool await(const PeerExchange& exchange, const uint4* from, uint32_t number, int peer,
                      uint4& packet) {
  const uint64_t start = now_ns();
  for (int polls = 1;; ++polls) {
    packet = poll(from);
    if (packet.y == number && packet.w == number) return true;
    if (polls % kPollsALook != 0) continue;
    const bool told = *reinterpret_cast<volatile uint32_t*>(exchange.broken) != 0 ||
                      *reinterpret_cast<volatile uint32_t*>(exchange.verdict) != 0;
    if (!told && now_ns() - start < exchange.deadline_ns) continue;
    if (!told) {
      *reinterpret_cast<volatile uint32_t*>(exchange.verdict) = static_cast<uint32_t>(peer) + 1;
    }
    *reinterpret_cast<volatile uint32_t*>(exchange.broken) = 1;
    __threadfence_system();
    return false;
  }
}

struct Sums {
  float value[kElements16];
};

template <bool kNarrow>
__device__ void add(Sums& sums, uint32_t low, uint32_t high) {
  if constexpr (kNarrow) {
    sums.value[0] += __uint_as_float(low << 16);
    sums.value[1] += __uint_as_float(low & 0xffff0000u);
    sums.value[2] += __uint_as_float(high << 16);
    sums.value[3] += __uint_as_float(high & 0xffff0000u);
  } else {
    sums.value[0] += __uint_as_float(low);
    sums.value[1] += __uint_as_float(high);
  }
}

__device__ uint32_t join(float low, float high) {
  return static_cast<uint32_t>(to_bfloat16(low).bits) |
         static_cast<uint32_t>(to_bfloat16(high).bits) << 16;
}

// The thread's 8 bytes, or fewer at the end of the message, filled up with zeros.
__device__ uint2 load_tail(const unsigned char* from, size_t bytes) {
  uint32_t words[2] = {0, 0};
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const uint32_t half = *reinterpret_cast<const uint16_t*>(from + i);
    words[i / 4] |= half << (8 * (i % 4));
  }
  return {words[0], words[1]};
}

__device__ void store_tail(unsigned char* to, size_t bytes, uint2 words) {
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const uint32_t word = i < 4 ? words.x : words.y;
    *reinterpret_cast<uint16_t*>(to + i) = static_cast<uint16_t>(word >> (8 * (i % 4)));
  }
}

template <bool kNarrow>
__global__ void __launch_bounds__(kExchangeThreads)
    peer_all_reduce(const __grid_constant__ PeerExchange exchange, unsigned char* data,
                    size_t bytes) {
  kernels::let_successor_start();
  kernels::wait_for_predecessor();  // before all else: the counters may be of the exchange before
  const uint32_t number = exchange.counters[blockIdx.x] + 1;
  const bool broken = *reinterpret_cast<volatile uint32_t*>(exchange.broken) != 0;
  const size_t slot = static_cast<size_t>(blockIdx.x) * kExchangeThreads + threadIdx.x;
  const size_t begin = slot * kThreadBytes;
  const size_t mine = begin < bytes ? bytes - begin : 0;
  uint2 words{0, 0};
  if (mine >= kThreadBytes) {
    words = *reinterpret_cast<const uint2*>(data + begin);
  } else if (mine > 0) {
    words = load_tail(data + begin, mine);
  }
  __syncthreads();  // every thread has read the counter
  if (threadIdx.x == 0) exchange.counters[blockIdx.x] = number;
  if (broken || mine == 0) return;

  constexpr size_t kPackets = kExchangeBytes / kThreadBytes;
  const size_t parity = static_cast<size_t>(number & 1) * exchange.size;
  for (int step = 1; step < exchange.size; ++step) {
    const int peer = (exchange.rank + step) % exchange.size;
    push(exchange.buffers[peer] + (parity + exchange.rank) * kPackets + slot, words.x, words.y,
         number);
  }
  Sums sums{};
  for (int rank = 0; rank < exchange.size; ++rank) {
    if (rank == exchange.rank) {
      add<kNarrow>(sums, words.x, words.y);
      continue;
    }
    uint4 packet;
    const uint4* from = exchange.buffers[exchange.rank] + (parity + rank) * kPackets + slot;
    if (!await(exchange, from, number, rank, packet)) return;
    add<kNarrow>(sums, packet.x, packet.z);
  }
  uint2 result;
  if constexpr (kNarrow) {
    result = {join(sums.value[0], sums.value[1]), join(sums.value[2], sums.value[3])};
  } else {
    result = {__float_as_uint(sums.value[0]), __float_as_uint(sums.value[1])};
  }
  if (mine >= kThreadBytes) {
    *reinterpret_cast<uint2*>(data + begin) = result;
  } else {
    store_tail(data + begin, mine, result);
  }
}

}  // namespace

void launch_peer_all_reduce(kernels::StreamRef stream, const PeerExchange& exchange, void* data,
                            DType dtype, size_t bytes) {
  constexpr size_t kBlockBytes = kThreadBytes * kExchangeThreads;
  const kernels::LaunchShape shape{
      dim3(static_cast<unsigned>((bytes + kBlockBytes - 1) / kBlockBytes)), kExchangeThreads};
  auto* at = static_cast<unsigned char*>(data);
  if (dtype == DType::kBFloat16) {
    kernels::launch<peer_all_reduce<true>>(stream, "peer_all_reduce", shape, exchange, at, bytes);
  } else {
    kernels::launch<peer_all_reduce<false>>(stream, "peer_all_reduce", shape, exchange, at, bytes);
  }
}

}  // namespace refrain::worker
