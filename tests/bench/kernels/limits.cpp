#include "tests/bench/kernels/limits.h"

#include <immintrin.h>

#include "kernels/host/isa.h"

namespace refrain::kernels {
namespace {

struct ReadArgs {
  const std::byte* data;
  int64_t bytes;
  double* sink;
};

// Four streams a thread, as linear reads its weights. Baseline code, 16 bytes a load: enough to be
// bound by memory.
void read_all(const ReadArgs& args, const Team& team) {
  const Range range = share_of(args.bytes, team, 4096);
  const int64_t part = (range.end - range.begin) / 4;
  __m128i sum[4] = {};
  for (int64_t i = range.begin; i < range.begin + part; i += 64) {
#pragma GCC unroll 4
    for (int stream = 0; stream < 4; ++stream) {
      const auto* p = reinterpret_cast<const __m128i*>(args.data + i + stream * part);
      _mm_prefetch(reinterpret_cast<const char*>(p) + 2048, _MM_HINT_T0);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[j] = _mm_add_epi32(sum[j], _mm_load_si128(p + j));
    }
  }
  const __m128i all = _mm_add_epi32(_mm_add_epi32(sum[0], sum[1]), _mm_add_epi32(sum[2], sum[3]));
  args.sink[team.rank * 8] = _mm_cvtsi128_si32(all);
}

struct SpinArgs {
  int64_t rounds;
  float* sink;
};

constexpr int kChains = 12;

__attribute__((target("avx512f"))) void fma_512(const SpinArgs& args, const Team& team) {
  __m512 acc[kChains];
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  __m512 x = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < args.rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_fmadd_ps(acc[j], x, x);
    asm volatile("" : "+v"(x));
  }
#pragma GCC unroll 12
  for (int j = 0; j < kChains; ++j) args.sink[team.rank * 16] += _mm512_cvtss_f32(acc[j]);
}

__attribute__((target("avx512f,avx512bf16"))) void dot_512(const SpinArgs& args, const Team& team) {
  __m512 acc[kChains];
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  __m512i x = _mm512_set1_epi32(0x3f003f00);
  for (int64_t i = 0; i < args.rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) {
      acc[j] =
          _mm512_dpbf16_ps(acc[j], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(x));
    }
    asm volatile("" : "+v"(x));
  }
#pragma GCC unroll 12
  for (int j = 0; j < kChains; ++j) args.sink[team.rank * 16] += _mm512_cvtss_f32(acc[j]);
}

__attribute__((target("avx2,fma"))) void fma_256(const SpinArgs& args, const Team& team) {
  __m256 acc[kChains];
  for (auto& a : acc) a = _mm256_set1_ps(1.0f);
  __m256 x = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < args.rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = _mm256_fmadd_ps(acc[j], x, x);
    asm volatile("" : "+x"(x));
  }
#pragma GCC unroll 12
  for (int j = 0; j < kChains; ++j) args.sink[team.rank * 16] += _mm256_cvtss_f32(acc[j]);
}

template <auto kernel>
double spin_rate(BenchTeam& team, double flops_a_chain_step) {
  std::vector<float> sink(static_cast<size_t>(team.size()) * 16);
  const SpinArgs args{200000, sink.data()};
  const Timing timing = measure(team, 9, [&] { launch<kernel>(team.stream(), args, "spin"); });
  return flops_a_chain_step * kChains * static_cast<double>(args.rounds) * team.size() /
         timing.least * 1e-9;
}

}  // namespace

Limits measure_limits(BenchTeam& team) {
  Limits limits;
  const Buffer memory(size_t{256} << 20);
  std::vector<double> sink(static_cast<size_t>(team.size()) * 8);
  const ReadArgs args{memory.as<std::byte>(), static_cast<int64_t>(memory.bytes()), sink.data()};
  const Timing read = measure(team, 9, [&] { launch<&read_all>(team.stream(), args, "read"); });
  limits.read_gb_s = static_cast<double>(args.bytes) / read.least * 1e-9;
  if (has_host_isa(HostIsa::kAvx512)) {
    limits.fma_gflop_s = spin_rate<&fma_512>(team, 32);
  } else if (has_host_isa(HostIsa::kAvx2)) {
    limits.fma_gflop_s = spin_rate<&fma_256>(team, 16);
  }
  if (has_host_isa(HostIsa::kAvx512Bf16)) limits.dot_gflop_s = spin_rate<&dot_512>(team, 64);
  return limits;
}

}  // namespace refrain::kernels
