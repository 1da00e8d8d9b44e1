#pragma once
// Which token a row's random draw takes, exactly, without a sort of the row. Tokens are ordered by
// logit, the most likely first, ties by token; top-k, top-p and the draw each ask for the token at
// which a count or a sum of integer weights, added up in that order, reaches a number. Bins of 1/32
// octave of probability narrow it down to a list short enough to be sorted, level by level: 10 bits
// of the distance to the most likely token, 10 more, then the bits of (logit, token) themselves, so
// that any number of ties ends in a list. Integer sums: no order of adding changes them.
//
// The threads are a Team (ClusterRow on the device, one thread in the test); all of them call. The
// idea of radix selection over histograms: Alabi et al., "Fast k-selection algorithms for graphics
// processing units", 2012.

#include <cmath>
#include <cstdint>

#include "kernels/core/op_args.h"

// Nothing here needs CUDA: the host's compiler tests it.
#ifdef __CUDACC__
#define REFRAIN_HOST_DEVICE __host__ __device__
#else
#define REFRAIN_HOST_DEVICE
#endif

namespace refrain::kernels {

using Sum = unsigned long long;

// Unsigned order of keys = order of logits; 0 is NaN.
REFRAIN_HOST_DEVICE inline uint32_t key_of(float logit) {
  if (logit != logit) return 0;
  const auto bits = __builtin_bit_cast(uint32_t, logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
REFRAIN_HOST_DEVICE inline float logit_of(uint32_t key) {
  return __builtin_bit_cast(float, (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t kLowestKey = 0x00800000u;  // of -FLT_MAX: what is below weighs nothing

// (key, token) as one number: higher logits, then lower tokens, are greater.
REFRAIN_HOST_DEVICE inline Sum ranked(uint32_t key, int32_t token) {
  return Sum{key} << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
REFRAIN_HOST_DEVICE inline int32_t token_of(Sum ranked) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(ranked));
}
REFRAIN_HOST_DEVICE inline uint32_t key_in(Sum ranked) {
  return static_cast<uint32_t>(ranked >> 32);
}

constexpr int kDigitBits = 10;
constexpr uint32_t kBins = 1u << kDigitBits;
constexpr int kPlaceBits = 2 * kDigitBits;
constexpr int kOctaveBits = 15;  // of a place, below its octave: 32 octaves
constexpr int kCodeBits = 50;    // a key, then a token below kMaxVocab
constexpr int kDigits = (kPlaceBits + kCodeBits) / kDigitBits;
constexpr int kFineOctaves = 21;         // weights keep 24 bits down to here
constexpr double kWeightOne = 0x1.0p44;  // of the most likely token; 2^18 of them fit a Sum
constexpr float kOctavesANat = 1.44269504f;

// How far below the most likely token a logit lies, in octaves of probability. Grows as logits
// fall, in float32 as well: place_of never puts a lower logit before a higher one.
struct Distance {
  float highest;
  float octaves;  // of a unit of logits
  REFRAIN_HOST_DEVICE float of(float logit) const {
    const float y = (highest - logit) * octaves;
    return y > 0.0f ? y : 0.0f;  // 0 also between infinities
  }
};

REFRAIN_HOST_DEVICE inline uint32_t place_of(float distance) {
  constexpr uint32_t kLast = (1u << kPlaceBits) - 1;
  const float capped = distance < 32.0f ? distance : 32.0f;
  // Rounds to a whole number in the low bits of the sum.
  const uint32_t place =
      __builtin_bit_cast(uint32_t, fmaf(capped, 0x1.0p15f, 0x1.0p23f)) - 0x4b000000u;
  return place < kLast ? place : kLast;
}

// What weights of a place are multiples of: 2^unit_of(place).
REFRAIN_HOST_DEVICE inline int unit_of(uint32_t place) {
  const int octave = static_cast<int>(place >> kOctaveBits);
  return octave < kFineOctaves ? kFineOctaves - octave : 0;
}

// kWeightOne / 2^distance in those units: below 2^24.
REFRAIN_HOST_DEVICE inline uint32_t units_of(float distance, uint32_t place) {
  const auto bits = __builtin_bit_cast(uint32_t, exp2f(-distance));
  const int shift = 127 - kFineOctaves + unit_of(place) - static_cast<int>(bits >> 23);
  return ((bits & 0x7fffffu) | 0x800000u) >> (shift < 31 ? shift : 31);
}

REFRAIN_HOST_DEVICE inline Sum weight_of(const Distance& distance, float logit) {
  const float y = distance.of(logit);
  const uint32_t place = place_of(y);
  return Sum{units_of(y, place)} << unit_of(place);
}

// The sum that top-p asks for, and the place of a draw in [0, kept).
REFRAIN_HOST_DEVICE inline Sum needed_of(float top_p, Sum total) {
  const auto needed = static_cast<Sum>(static_cast<double>(top_p) * static_cast<double>(total));
  return needed < 1 ? 1 : needed < total ? needed : total;
}
REFRAIN_HOST_DEVICE inline Sum target_of(double uniform, Sum kept) {
  const auto target = static_cast<Sum>(uniform * static_cast<double>(kept));
  return target < kept ? target : kept - 1;
}

// Tokens whose first digits are given. A digit grows as the order goes on.
struct TokenRange {
  uint32_t place = 0;
  int place_rest = kPlaceBits;  // bits of the place that are open
  Sum code = 0;
  int code_rest = kCodeBits;

  REFRAIN_HOST_DEVICE static Sum code_of(uint32_t key, int32_t token) {  // ascending in the order
    return Sum{~key} << (kCodeBits - 32) | static_cast<uint32_t>(token);
  }
  REFRAIN_HOST_DEVICE bool holds(uint32_t at, uint32_t key, int32_t token) const {
    return at >> place_rest == place && code_of(key, token) >> code_rest == code;
  }
  REFRAIN_HOST_DEVICE uint32_t digit(uint32_t at, uint32_t key, int32_t token) const {
    if (place_rest > 0) return at >> (place_rest - kDigitBits) & (kBins - 1);
    return static_cast<uint32_t>(code_of(key, token) >> (code_rest - kDigitBits)) & (kBins - 1);
  }
  REFRAIN_HOST_DEVICE void narrow(uint32_t digit) {
    if (place_rest > 0) {
      place = place << kDigitBits | digit;
      place_rest -= kDigitBits;
    } else {
      code = code << kDigitBits | digit;
      code_rest -= kDigitBits;
    }
  }
  // A place of the tokens with that next digit, for their unit; it is theirs alone from the first
  // digit on, as an octave is 32 digits.
  REFRAIN_HOST_DEVICE uint32_t place_at(uint32_t digit) const {
    if (place_rest == kPlaceBits) return digit << kDigitBits;
    return place << place_rest;
  }
};

struct Found {
  Sum ranked;     // the token
  Sum through;    // counted or weighed up to and including it
  Sum list_past;  // weighed up to the end of the list
};

// kBins numbers, kItems a thread; before and total once the Team's scan() has been called.
template <int kItems>
struct BinShares {
  Sum own[kItems];
  Sum before, total;
};
struct BinHit {
  uint32_t index;
  Sum before, own;
};

// Of Team:
//   Shares            BinShares<kItems>; item(j) is the index of own[j]
//   find(shares, n)   BinHit: the first at which the sum reaches n, 1 <= n <= total
//   each_token(f)     f(token, logit) for this thread's tokens
//   clear_bins(), add_count(bin), add_units(bin, units), read_bins<weigh>(): Shares without scan
//   clear_list(), add_to_list(ranked), end_list(): the number of all added; the leader has them
//                     if they are at most kListTokens
//   sort_list(n), listed(i), scan and find of lists: by the leader's block
//   share(x)          the leader's x on all threads
template <class Team>
struct RowSelect {
  using Shares = typename Team::Shares;

  Team& team;
  Distance distance;
  float least;  // tokens below take no part
  int32_t vocab = 0;
  Sum last = 0;  // of draw(): the last token that could be drawn; 0: all that are not below `least`
  Shares list = {};  // weights of the leader's list, of a weighed range
  Sum list_before = 0, list_past = 0;

  // The next token's digits of those in `range`, counted or weighed. Tokens below `floor` are left
  // out, tokens further away than `limit` added to `rest` instead.
  template <bool kWeigh>
  REFRAIN_HOST_DEVICE Shares bin(const TokenRange& range, float floor, float limit, Sum& rest) {
    const bool whole = range.place_rest == kPlaceBits;
    team.clear_bins();
    team.each_token([&](int32_t token, float x) {
      if (!(x >= floor)) return;
      const float y = distance.of(x);
      const uint32_t place = place_of(y);
      uint32_t digit = place >> kDigitBits;
      if (!whole) {
        const uint32_t key = key_of(x);
        if (!range.holds(place, key, token)) return;
        digit = range.digit(place, key, token);
      }
      if (!kWeigh) {
        team.add_count(digit);
      } else if (y > limit) {
        rest += Sum{units_of(y, place)} << unit_of(place);
      } else {
        team.add_units(digit, units_of(y, place));
      }
    });
    Shares shares = team.template read_bins<kWeigh>();
    if (kWeigh) {
      for (int j = 0; j < Team::kItems; ++j) {
        shares.own[j] <<= unit_of(range.place_at(team.item(j)));
      }
    }
    team.scan(shares);
    return shares;
  }

  // Lists the tokens of a range, or all up to its end (a range of one digit), at `floor` or above.
  REFRAIN_HOST_DEVICE int32_t collect(const TokenRange& range, bool from_top, float floor) {
    team.clear_list();
    team.each_token([&](int32_t token, float x) {
      if (!(x >= floor)) return;
      const uint32_t place = place_of(distance.of(x)), key = key_of(x);
      if (from_top ? place >> range.place_rest <= range.place : range.holds(place, key, token)) {
        team.add_to_list(ranked(key, token));
      }
    });
    return team.end_list();
  }

  // By the leader. Weights of the sorted list's tokens down to a key.
  REFRAIN_HOST_DEVICE Shares weigh_list(int32_t count, uint32_t least_key) {
    Shares shares;
    for (int j = 0; j < Team::kItems; ++j) {
      const auto i = static_cast<int32_t>(team.item(j));
      const uint32_t key = i < count ? key_in(team.listed(i)) : 0;
      shares.own[j] = i < count && key >= least_key ? weight_of(distance, logit_of(key)) : 0;
    }
    team.scan(shares);
    return shares;
  }

  // At most so many tokens up to the bin (half as many at least), from weights.
  REFRAIN_HOST_DEVICE Sum tokens_through(const Shares& bins, uint32_t bin) {
    Shares tokens;
    for (int j = 0; j < Team::kItems; ++j) {
      tokens.own[j] = bins.own[j] >> (22 + unit_of(team.item(j) << kDigitBits));
    }
    team.scan(tokens);
    return team.through(tokens, bin);
  }

  // The token at which the count or the weight reaches `needed`; bins: of the first digit.
  template <bool kWeigh>
  REFRAIN_HOST_DEVICE Found locate(Shares bins, Sum needed) {
    TokenRange range;
    Sum before = 0, rest = 0;
    int32_t count = 0;
    for (int digit = 0; digit < kDigits; ++digit) {  // the last names one token
      const auto hit = team.find(bins, needed - before);
      const bool first = range.place_rest == kPlaceBits;
      const bool from_top =
          kWeigh && first && tokens_through(bins, hit.index) <= Sum{Team::kListTokens};
      before += hit.before;
      range.narrow(hit.index);
      if (kWeigh || hit.own <= Sum{Team::kListTokens}) {
        count = collect(range, from_top, least);
        if (count <= Team::kListTokens) {
          if (from_top) before = 0;
          break;
        }
      }
      bins = bin<kWeigh>(range, least, INFINITY, rest);
    }
    Found found{};
    list_before = before;
    if (team.leads()) {
      team.sort_list(count);
      if (kWeigh) {
        list = weigh_list(count, 0);
        found = in_list(needed);
      } else {
        found = {team.listed(static_cast<int32_t>(needed - before) - 1), needed, 0};
      }
    }
    found = team.share(found);
    list_past = found.list_past;
    return found;
  }

  // By the leader.
  REFRAIN_HOST_DEVICE Found in_list(Sum needed) {
    const auto hit = team.find(list, needed - list_before);
    return {team.listed(static_cast<int32_t>(hit.index)), list_before + hit.before + hit.own,
            list_before + list.total};
  }

  // Lists the k best tokens and some more, sorted, at the leader: their number; 0: too many.
  // `sure`: kSureTokens tokens at least have this logit or a higher one.
  REFRAIN_HOST_DEVICE int32_t list_top(int32_t& k, float sure, Shares& counts) {
    const float floor = k <= Team::kSureTokens && sure > least ? sure : least;
    Sum rest = 0;
    counts = bin<false>(TokenRange{}, floor, INFINITY, rest);
    k = counts.total < static_cast<Sum>(k) ? static_cast<int32_t>(counts.total) : k;
    const auto hit = team.find(counts, static_cast<Sum>(k));
    if (hit.before + hit.own > Sum{Team::kListTokens}) return 0;
    TokenRange range;
    range.narrow(hit.index);
    const int32_t count = collect(range, true, floor);
    if (team.leads()) team.sort_list(count);
    return count;
  }

  // The token that top-k, then top-p leave and `uniform` of [0, 1) draws, the most likely first.
  REFRAIN_HOST_DEVICE int32_t draw(const SlotParams& params, double uniform, float sure) {
    if (params.top_k > 0 && params.top_k < vocab) {
      int32_t k = params.top_k;
      Shares counts;
      const int32_t count = list_top(k, sure, counts);
      if (count > 0) {
        const Found drawn = draw_from_list(count, k, params.top_p, uniform);
        last = drawn.through;
        return token_of(drawn.ranked);
      }
      least = logit_of(key_in(locate<false>(counts, static_cast<Sum>(k)).ranked));
    }
    // Tokens lighter than (1 - p) / n of the most likely weigh less than 1 - p of the sum together.
    const bool cuts = params.top_p < 1.0f;
    const float limit =
        cuts ? log2f(static_cast<float>(vocab) / (1.0f - params.top_p)) + 0.01f : INFINITY;
    Sum rest = 0;
    const Shares bins = bin<true>(TokenRange{}, least, limit, rest);
    Sum kept = bins.total;
    if (cuts) {
      const Sum needed = needed_of(params.top_p, kept + team.sum(rest));
      const Found cut = locate<true>(bins, needed < kept ? needed : kept);
      kept = cut.through;
      last = cut.ranked;
    }
    const Sum target = target_of(uniform, kept) + 1;
    Found drawn{};
    if (list_before < target && target <= list_past) {
      if (team.leads()) drawn = in_list(target);
      drawn = team.share(drawn);
    } else {
      drawn = locate<true>(bins, target);
    }
    return token_of(drawn.ranked);
  }

 private:
  // Tokens tied with the k-th stay. `through` of what is found: as `last`.
  REFRAIN_HOST_DEVICE Found draw_from_list(int32_t count, int32_t k, float top_p, double uniform) {
    Found drawn{};
    if (team.leads()) {
      const uint32_t least_key = key_in(team.listed(k - 1));
      const Shares weights = weigh_list(count, least_key);
      Sum kept = weights.total;
      drawn.through = Sum{least_key} << 32;
      if (top_p < 1.0f) {
        const auto cut = team.find(weights, needed_of(top_p, kept));
        kept = cut.before + cut.own;
        drawn.through = team.listed(static_cast<int32_t>(cut.index));
      }
      const auto hit = team.find(weights, target_of(uniform, kept) + 1);
      drawn.ranked = team.listed(static_cast<int32_t>(hit.index));
    }
    return team.share(drawn);
  }
};

}  // namespace refrain::kernels
