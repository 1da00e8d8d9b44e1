#pragma once
// One packet of an exchange over peer memory: 16 bytes of every rank's message become their sum,
// or go to all ranks.
// A receiver's buffer holds kEmpty wherever nothing has come; a sender never sends that word, and
// the receiver puts it back when it has read. So packets need no numbers and no fences, and each
// word is judged by itself.
//
// Why two buffers by parity are enough: before a thread writes packets of exchange n + 2 it has had
// (through the owner, if there is one) its peers' packets of n + 1, which a peer sends only after
// its kernel of exchange n is over, has read all of n's packets and has emptied their places. The
// same of packets that the linear before the exchange sends (kernels::PeerPackets): it waits for
// the kernels before it first.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/peer_packets.cuh"
#include "worker/comm/cuda/peer_exchange.h"

namespace refrain::worker {

using kernels::kEmpty;

__device__ inline bool has_come(const uint4& words) {
  return words.x != kEmpty && words.y != kEmpty && words.z != kEmpty && words.w != kEmpty;
}

__device__ inline uint4 sendable(const uint4& words) {
  return {kernels::sendable(words.x), kernels::sendable(words.y), kernels::sendable(words.z),
          kernels::sendable(words.w)};
}

// Takes the packet at `at`, which `words` has as it was when last looked at, and leaves the place
// empty. False when the deadline passed or the host asked to stop; says so to everyone on this
// rank.
__device__ inline bool take(const PeerExchange& exchange, uint4* at, int peer, uint4& words) {
  if (!has_come(words)) {
    const uint64_t start = kernels::now_ns();
    for (int polls = 1;; ++polls) {
      words = kernels::poll_words(at);
      if (has_come(words)) break;
      if (polls % kernels::kPollsALook == 0 && kernels::gives_up(exchange, start, peer)) {
        return false;
      }
    }
  }
  *at = {kEmpty, kEmpty, kEmpty, kEmpty};
  return true;
}

__device__ inline bool poll(const PeerExchange& exchange, uint4* at, int peer, uint4& words) {
  words = kernels::poll_words(at);
  return take(exchange, at, peer, words);
}

template <bool kNarrow>
struct Sums {
  float value[kNarrow ? 8 : 4] = {};

  __device__ void add(const uint4& words) {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kNarrow) {
        value[2 * i] += kernels::low_half(word[i]);
        value[2 * i + 1] += kernels::high_half(word[i]);
      } else {
        value[i] += __uint_as_float(word[i]);
      }
    }
  }
  __device__ uint4 words() const {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kNarrow) {
        word[i] = kernels::pack_halves(value[2 * i], value[2 * i + 1]);
      } else {
        word[i] = __float_as_uint(value[i]);
      }
    }
    return {word[0], word[1], word[2], word[3]};
  }
};

// This thread's place in the exchange: slot `slot` of the buffers, kExchangeBytes / kThreadBytes of
// them. Called by whole warps, whose 32 slots follow each other, after wait_for_predecessor().
struct PacketPlace {
  size_t slot;
  uint32_t parity;

  __device__ PacketPlace(const PeerExchange& exchange, size_t s) : slot(s) {
    uint32_t* counter = exchange.counters + slot / 32;
    const uint32_t number = *counter + 1;
    __syncwarp();  // every lane has read it
    if (slot % 32 == 0) *counter = number;
    parity = number & 1;
  }
  // Of the exchange of that number, which somebody else counts.
  __device__ PacketPlace(size_t s, uint32_t number) : slot(s), parity(number & 1) {}
  // Where rank `to` receives from rank `from`.
  __device__ uint4* at(const PeerExchange& exchange, int to, int from) const {
    constexpr size_t kPackets = kExchangeBytes / kThreadBytes;
    return exchange.buffers[to] + (static_cast<size_t>(parity) * exchange.size + from) * kPackets +
           slot;
  }
};

__device__ inline void send_to_all(const PeerExchange& exchange, const PacketPlace& place,
                                   const uint4& words) {
  for (int step = 1; step < exchange.size; ++step) {
    kernels::push_words(place.at(exchange, (exchange.rank + step) % exchange.size, exchange.rank),
                        words);
  }
}

// parts = what all ranks' linears have sent to this place, this rank's too; leaves the places
// empty. False: give up.
__device__ inline bool take_sent(const PeerExchange& exchange, size_t slot, uint32_t number,
                                 uint4 (&parts)[kernels::kMaxPeerRanks]) {
  const PacketPlace place(slot, number);
#pragma unroll
  for (int r = 0; r < kernels::kMaxPeerRanks; ++r) {  // all on their way together
    if (r < exchange.size) parts[r] = kernels::poll_words(place.at(exchange, exchange.rank, r));
  }
#pragma unroll
  for (int r = 0; r < kernels::kMaxPeerRanks; ++r) {
    if (r < exchange.size && !take(exchange, place.at(exchange, exchange.rank, r), r, parts[r]))
      return false;
  }
  return true;
}

// words = the sum over the ranks, in rank order, equal bits on every rank. owner < 0: everyone
// sends to everyone; else the owner alone sums and sends the result. False: give up.
template <bool kNarrow>
__device__ bool sum_packets(const PeerExchange& exchange, const PacketPlace& place, int owner,
                            uint4& words) {
  const int rank = exchange.rank;
  words = sendable(words);
  if (owner >= 0 && owner != rank) {
    kernels::push_words(place.at(exchange, owner, rank), words);
    return poll(exchange, place.at(exchange, rank, owner), owner, words);
  }
  if (owner < 0) send_to_all(exchange, place, words);
  Sums<kNarrow> sums;
  for (int peer = 0; peer < exchange.size; ++peer) {
    uint4 part = words;
    if (peer != rank && !poll(exchange, place.at(exchange, rank, peer), peer, part)) return false;
    sums.add(part);
  }
  words = sums.words();
  if (owner == rank) {
    words = sendable(words);
    send_to_all(exchange, place, words);
  }
  return true;
}

}  // namespace refrain::worker
