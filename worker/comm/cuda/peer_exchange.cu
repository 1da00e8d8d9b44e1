// Bound by latency (one store over NVLink and one poll of local memory; twice that when the ranks
// share the summing) up to some 64 KiB, then by NVLink: a rank sends (size - 1) times the message,
// or 2 (size - 1) / size times when they share it.
//
// H200, us: two ranks 2.4 (8 KiB), 5.4 (1 MiB), 25.6 (8 MiB); four 3.1, 7.5, 39.9. With addition
// and norm 0.7 to 1.0 less than as two kernels.

#include "kernels/cuda/launch.cuh"
#include "worker/comm/cuda/exchange_packets.cuh"
#include "worker/comm/cuda/peer_exchange.h"

namespace refrain::worker {

namespace {

constexpr int kMaxRowThreads = 1024;

__device__ uint32_t& word_of(uint4& words, size_t i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The thread's 16 bytes, or fewer at the end of the message, filled up with zeros.
__device__ uint4 load_tail(const unsigned char* from, size_t bytes) {
  uint4 words{0, 0, 0, 0};
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const uint32_t half = *reinterpret_cast<const uint16_t*>(from + i);
    word_of(words, i / 4) |= half << (8 * (i % 4));
  }
  return words;
}

__device__ void store_tail(unsigned char* to, size_t bytes, uint4 words) {
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    *reinterpret_cast<uint16_t*>(to + i) =
        static_cast<uint16_t>(word_of(words, i / 4) >> (8 * (i % 4)));
  }
}

__device__ bool is_broken(const PeerExchange& exchange) {
  return *reinterpret_cast<volatile uint32_t*>(exchange.broken) != 0;
}

// The rank that sums for this thread; neighbouring warps have one owner.
__device__ int owner_of_thread(const PeerExchange& exchange, bool shared) {
  return shared ? static_cast<int>(threadIdx.x * exchange.size / blockDim.x) : -1;
}

template <bool kNarrow>
__global__ void __launch_bounds__(kExchangeThreads)
    peer_all_reduce(const __grid_constant__ PeerExchange exchange, unsigned char* data,
                    size_t bytes, bool shared) {
  kernels::let_successor_start();
  kernels::wait_for_predecessor();  // before all else: the counters may be of the exchange before
  const PacketPlace place(exchange, size_t{blockIdx.x} * kExchangeThreads + threadIdx.x);
  const size_t begin = place.slot * kThreadBytes;
  if (begin >= bytes || is_broken(exchange)) return;
  const size_t mine = bytes - begin;
  uint4 words = mine >= kThreadBytes ? *reinterpret_cast<const uint4*>(data + begin)
                                     : load_tail(data + begin, mine);
  if (!sum_packets<kNarrow>(exchange, place, owner_of_thread(exchange, shared), words)) return;
  if (mine >= kThreadBytes) {
    *reinterpret_cast<uint4*>(data + begin) = words;
  } else {
    store_tail(data + begin, mine, words);
  }
}

__device__ void store_part(unsigned char* to, size_t bytes, const uint4& words) {
  if (bytes >= kThreadBytes && reinterpret_cast<uintptr_t>(to) % kThreadBytes == 0) {
    *reinterpret_cast<uint4*>(to) = words;
  } else {
    store_tail(to, bytes < kThreadBytes ? bytes : kThreadBytes, words);
  }
}

__global__ void __launch_bounds__(kExchangeThreads)
    peer_all_gather(const __grid_constant__ PeerExchange exchange, const unsigned char* in,
                    unsigned char* out, size_t bytes, size_t rank_bytes,
                    const __grid_constant__ GatherRows rows) {
  kernels::let_successor_start();
  kernels::wait_for_predecessor();
  if (rows.live != nullptr) {  // the same on all ranks
    const size_t live = static_cast<size_t>(*rows.live) * rows.row_bytes;
    bytes = live <= rows.begin ? 0 : min(bytes, live - rows.begin);
  }
  const size_t slot = size_t{blockIdx.x} * kExchangeThreads + threadIdx.x;
  // An exchange in which nothing is sent must not count: nobody would have waited for anybody
  // between the one before it and the one behind it, which would have the same buffer.
  if (slot / 32 * 32 * kThreadBytes >= bytes) return;
  const PacketPlace place(exchange, slot);
  const size_t begin = slot * kThreadBytes;
  if (begin >= bytes || is_broken(exchange)) return;
  const size_t mine = bytes - begin;
  uint4 words = mine >= kThreadBytes ? *reinterpret_cast<const uint4*>(in + begin)
                                     : load_tail(in + begin, mine);
  words = sendable(words);
  send_to_all(exchange, place, words);
  store_part(out + static_cast<size_t>(exchange.rank) * rank_bytes + begin, mine, words);
  for (int step = 1; step < exchange.size; ++step) {
    const int peer = (exchange.rank + step) % exchange.size;
    if (!poll(exchange, place.at(exchange, exchange.rank, peer), peer, words)) return;
    store_part(out + static_cast<size_t>(peer) * rank_bytes + begin, mine, words);
  }
}

// A thread's part of a row: eight columns of the residual and of what is added to it.
struct RowPart {
  int64_t row, col;
  bool inside;
  float weight[8] = {}, x[8] = {}, delta[8] = {};

  __device__ explicit RowPart(const kernels::AddRmsNormArgs& args)
      : row(blockIdx.x), col(int64_t{threadIdx.x} * 8), inside(col < args.cols) {
    if (!inside) return;  // the weight was written long before this step
    const kernels::Matrix weights{const_cast<float*>(args.weight), DType::kFloat32, 0};
    kernels::load8(weights, true, 0, col, 8, weight);
  }
  __device__ void load_residual(const kernels::AddRmsNormArgs& args) {
    if (inside) kernels::load8(args.residual, true, row, col, 8, x);
  }
  // By all threads of the block. whole: the sum over ranks has come.
  __device__ void add_and_norm(const kernels::AddRmsNormArgs& args, bool whole, float* sums) {
    float squares = 0;
    if (inside && whole) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = kernels::rounded(x[i] + delta[i], args.residual.dtype);
        squares = fmaf(x[i], x[i], squares);
      }
      kernels::store8(args.residual, true, row, col, 8, x);
    }
    const float scale =
        1.0f / sqrtf(kernels::block_sum(squares, sums) / static_cast<float>(args.cols) + args.eps);
    if (!inside) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * scale * weight[i];
    kernels::store8(args.out, true, row, col, 8, x);
  }
};

// A block owns a row, a thread eight columns: bfloat16 rows of a multiple of eight columns.
__global__ void __launch_bounds__(kMaxRowThreads)
    peer_add_rms_norm(const __grid_constant__ PeerExchange exchange,
                      const __grid_constant__ kernels::AddRmsNormArgs args, bool shared) {
  __shared__ float sums[33];
  RowPart part(args);
  kernels::let_successor_start();
  kernels::wait_for_predecessor();
  // Everything is on its way before any of it is looked at.
  const bool broken = is_broken(exchange);
  const bool live = part.row < kernels::live_rows(args.rows);
  uint4 words{};
  if (part.inside) {
    words = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.delta.data) +
                                            part.row * args.delta.stride + part.col);
  }
  part.load_residual(args);
  const PacketPlace place(exchange, part.row * blockDim.x + threadIdx.x);
  if (broken) return;
  bool whole = true;
  if (part.inside) {
    whole = sum_packets<true>(exchange, place, owner_of_thread(exchange, shared), words);
    kernels::unpack8(words, part.delta);
  }
  if (live) part.add_and_norm(args, whole, sums);
}

// The same of rows that the linears before it have sent, to their own rank too: so a row's packets
// say that the linear has done with its input, and only the end of this kernel waits for its. What
// is read before was written before the linear began, which has waited for it.
__global__ void __launch_bounds__(kMaxRowThreads)
    peer_add_rms_norm_sent(const __grid_constant__ PeerExchange exchange,
                           const __grid_constant__ kernels::AddRmsNormArgs args) {
  __shared__ float sums[33];
  RowPart part(args);
  kernels::let_successor_start();
  const bool broken = is_broken(exchange);
  const bool live = part.row < kernels::live_rows(args.rows);
  const size_t slot = part.row * blockDim.x + threadIdx.x;
  uint32_t* counter = exchange.counters + slot / 32;
  const uint32_t number = *reinterpret_cast<volatile uint32_t*>(counter) + 1;
  part.load_residual(args);
  if (live && !broken) {
    uint4 parts[kernels::kMaxPeerRanks] = {};
    const bool whole = part.inside && take_sent(exchange, slot, number, parts);
    __syncwarp();
    if (slot % 32 == 0) *counter = number;  // this rank's linear, too, has read it
    Sums<true> sum;
#pragma unroll
    for (int r = 0; r < kernels::kMaxPeerRanks; ++r) {
      if (r < exchange.size) sum.add(parts[r]);
    }
    kernels::unpack8(sum.words(), part.delta);
    part.add_and_norm(args, whole, sums);
  }
  kernels::wait_for_predecessor();
}

kernels::LaunchShape message_shape(size_t bytes) {
  constexpr size_t kBlockBytes = kThreadBytes * kExchangeThreads;
  return {dim3(static_cast<unsigned>((bytes + kBlockBytes - 1) / kBlockBytes)), kExchangeThreads};
}

int row_threads(int64_t cols) { return static_cast<int>((cols / 8 + 31) / 32 * 32); }

kernels::LaunchShape row_shape(const kernels::AddRmsNormArgs& args) {
  return {dim3(static_cast<unsigned>(args.rows.padded)), row_threads(args.cols)};
}

size_t row_message(int32_t rows, int64_t cols) {
  return static_cast<size_t>(rows) * static_cast<size_t>(row_threads(cols)) * kThreadBytes;
}

bool takes_rows(int32_t rows, int64_t cols) {
  return cols % 8 == 0 && cols <= 8 * kMaxRowThreads && row_message(rows, cols) <= kExchangeBytes;
}

}  // namespace

bool sums_everywhere(size_t bytes, int size) {
  constexpr size_t kFewBytes = size_t{128} << 10;  // measured on four H200s
  return size == 2 || bytes <= kFewBytes;
}

void launch_peer_all_reduce(kernels::StreamRef stream, const PeerExchange& exchange, void* data,
                            DType dtype, size_t bytes) {
  const kernels::LaunchShape shape = message_shape(bytes);
  auto* at = static_cast<unsigned char*>(data);
  const bool shared = !sums_everywhere(bytes, exchange.size);
  if (dtype == DType::kBFloat16) {
    kernels::launch<peer_all_reduce<true>>(stream, "peer_all_reduce", shape, exchange, at, bytes,
                                           shared);
  } else {
    kernels::launch<peer_all_reduce<false>>(stream, "peer_all_reduce", shape, exchange, at, bytes,
                                            shared);
  }
}

void launch_peer_all_gather(kernels::StreamRef stream, const PeerExchange& exchange, const void* in,
                            void* out, size_t bytes, size_t rank_bytes, const GatherRows& rows) {
  kernels::launch<peer_all_gather>(stream, "peer_all_gather", message_shape(bytes), exchange,
                                   static_cast<const unsigned char*>(in),
                                   static_cast<unsigned char*>(out), bytes, rank_bytes, rows);
}

bool can_peer_add_rms_norm(const kernels::AddRmsNormArgs& args) {
  return args.delta.dtype == DType::kBFloat16 && takes_rows(args.rows.padded, args.cols) &&
         kernels::is_wide(args.weight) && kernels::rows_are_wide(args.delta) &&
         kernels::rows_are_wide(args.residual) && kernels::rows_are_wide(args.out);
}

void launch_peer_add_rms_norm(kernels::StreamRef stream, const PeerExchange& exchange,
                              const kernels::AddRmsNormArgs& args) {
  const size_t bytes = row_message(args.rows.padded, args.cols);
  kernels::launch<peer_add_rms_norm>(stream, "peer_add_rms_norm", row_shape(args), exchange, args,
                                     !sums_everywhere(bytes, exchange.size));
}

kernels::PeerPackets sent_rows(const PeerExchange& exchange, int32_t rows, int64_t cols) {
  if (exchange.size > kernels::kMaxPeerRanks || !takes_rows(rows, cols) ||
      !sums_everywhere(row_message(rows, cols), exchange.size)) {
    return {};
  }
  kernels::PeerPackets packets{.size = exchange.size};
  for (int r = 0; r < exchange.size; ++r) {
    packets.at[r] = exchange.buffers[r] + exchange.rank * (kExchangeBytes / kThreadBytes);
  }
  packets.odd_bytes = static_cast<int64_t>(kExchangeBytes) * exchange.size;
  packets.row_packets = row_threads(cols);
  packets.counters = exchange.counters;
  return packets;
}

void launch_peer_add_rms_norm_sent(kernels::StreamRef stream, const PeerExchange& exchange,
                                   const kernels::AddRmsNormArgs& args) {
  kernels::launch<peer_add_rms_norm_sent>(stream, "peer_add_rms_norm_sent", row_shape(args),
                                          exchange, args);
}

}  // namespace refrain::worker
