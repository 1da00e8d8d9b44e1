// Sums that linears make among ranks, without a collective of their own between them.
#include <chrono>
#include <thread>

#include "tests/gpu/collectives/gpu_group.h"

namespace refrain::worker {
namespace {

class PeerSums : public GpuGroup {};
INSTANTIATE_TEST_SUITE_P(Ranks, PeerSums, testing::Values(2, 4));

// Two linears push to all ranks and two pull, in one graph, again and again. Small whole numbers,
// so that every sum is exact.
std::string check_peer_sums(Rank& rank, int size) {
  constexpr int64_t kInner = 16, kCols = 1032;
  const auto bf16 = DType::kBFloat16;
  const int me = rank.communicator->rank();
  std::vector<std::unique_ptr<Buffer>> buffers;
  const auto matrix = [&](int64_t rows, int64_t cols, auto value) {
    const size_t bytes = static_cast<size_t>(rows * cols) * 2;
    auto pinned = rank.device->allocate_pinned(bytes);
    for (int64_t i = 0; i < rows * cols; ++i) put(pinned->data(), bf16, i, value(i));
    buffers.push_back(rank.device->allocate(bytes, MemoryTag::kOther));
    rank.stream->copy(buffers.back()->data(), pinned->data(), bytes);
    rank.stream->synchronize();
    return kernels::Matrix{buffers.back()->data(), bf16, cols};
  };
  const auto small = [](int64_t i) { return static_cast<float>(i % 3 - 1); };
  const auto weight_of = [](int r, int64_t i) { return static_cast<float>((i * 7 + r) % 5 - 2); };
  const auto norm = rank.device->allocate(kCols * 4, MemoryTag::kOther);
  auto ones = rank.device->allocate_pinned(kCols * 4);
  for (int64_t i = 0; i < kCols; ++i) static_cast<float*>(ones->data())[i] = 1.0f;
  rank.stream->copy(norm->data(), ones->data(), kCols * 4);
  rank.communicator->reserve_peer_sums(2, kCols);
  const auto& table = rank.device->kernels();
  for (const int32_t rows : {1, 4, 2, 3, 1}) {  // all use the same places
    const kernels::Rows all{rows, nullptr};
    const auto in = matrix(rows, kInner, small);
    const auto weight = matrix(kCols, kInner, [&](int64_t i) { return weight_of(me, i); });
    const auto head = matrix(16, kCols, small);
    const auto zero = [](int64_t) { return 0.0f; };
    kernels::Matrix residual[3] = {matrix(rows, kCols, zero), matrix(rows, kCols, zero),
                                   matrix(rows, kCols, zero)};
    const auto out = matrix(rows, 16, zero), delta = matrix(rows, kCols, zero);
    const auto step = [&] {
      for (const int place : {0, 1}) {
        kernels::FusedLinearArgs push;
        push.linear = {
            in,          {weight.data, bf16, kernels::WeightLayout::kRowMajor, kCols, kInner},
            nullptr,     {},
            residual[0], all};
        push.push = rank.communicator->peer_sum(*rank.stream, place, all);
        table.fused_linear(rank.stream->ref(), push);
        kernels::FusedLinearArgs pull;
        pull.linear = {residual[place],
                       {head.data, bf16, kernels::WeightLayout::kRowMajor, 16, kCols},
                       nullptr,
                       {},
                       out,
                       all};
        pull.norm = static_cast<const float*>(norm->data());
        pull.delta = delta;  // its memory is not read
        pull.sum_out = residual[place + 1];
        pull.pull = rank.communicator->peer_sum(*rank.stream, place, all);
        table.fused_linear(rank.stream->ref(), pull);
      }
    };
    step();
    rank.stream->synchronize();
    rank.stream->begin_capture();
    step();
    auto graph = rank.stream->end_capture();
    const size_t bytes = static_cast<size_t>(rows * kCols) * 2;
    auto pinned = rank.device->allocate_pinned(bytes);
    for (int round = 0; round < 200; ++round) {
      const auto start = static_cast<float>(round % 50);
      for (int64_t i = 0; i < rows * kCols; ++i) put(pinned->data(), bf16, i, start);
      rank.stream->copy(residual[0].data, pinned->data(), bytes);
      rank.stream->launch(*graph);
      rank.stream->copy(pinned->data(), residual[2].data, bytes);
      rank.stream->synchronize();
      for (int64_t i = 0; i < rows * kCols; ++i) {
        float sum = 0;
        for (int r = 0; r < size; ++r) {
          for (int64_t k = 0; k < kInner; ++k) {
            sum += small(i / kCols * kInner + k) * weight_of(r, i % kCols * kInner + k);
          }
        }
        const float wanted = start + 2 * sum, got = get(pinned->data(), bf16, i);
        if (got != wanted) {
          return fmt::format("{} rows, round {}, {}: {} is not {}", rows, round, i, got, wanted);
        }
      }
    }
  }
  return "good";
}

TEST_P(PeerSums, LinearsPushAndPullSums) {
  expect_all(run_ranks(size_,
                       [&](int r) {
                         Rank rank(token_, r, size_);
                         return check_peer_sums(rank, size_);
                       }),
             "good");
}

// A rank that does not push: the others leave by the deadline and are told who did not come.
TEST_P(PeerSums, APeerSumThatOneRankNeverJoinsEndsByItsDeadline_R9) {
  const auto results = run_ranks(size_, [&](int r) -> std::string {
    Rank rank(token_, r, size_, 1500);
    rank.communicator->reserve_peer_sums(1, 64);
    if (r == size_ - 1) {
      std::this_thread::sleep_for(std::chrono::seconds(4));  // past the others' deadline
      return "stayed away";
    }
    auto memory = rank.device->allocate(64 * 64 * 4, MemoryTag::kOther);
    const kernels::Matrix any{memory->data(), DType::kBFloat16, 64};
    kernels::FusedLinearArgs pull;
    pull.linear = {any,     {any.data, any.dtype, kernels::WeightLayout::kRowMajor, 16, 64},
                   nullptr, {},
                   any,     {1, nullptr}};
    pull.norm = static_cast<const float*>(memory->data());
    pull.delta = any;
    pull.sum_out = {static_cast<std::byte*>(memory->data()) + 8192, any.dtype, 64};
    pull.linear.in.data = static_cast<std::byte*>(memory->data()) + 4096;
    pull.delta.data = static_cast<std::byte*>(memory->data()) + 12288;
    pull.pull = rank.communicator->peer_sum(*rank.stream, 0, {1, nullptr});
    rank.device->kernels().fused_linear(rank.stream->ref(), pull);
    try {
      rank.stream->synchronize();
    } catch (const DeviceError& error) {
      // The first to notice names the rank that stayed away; others may see the first leave.
      const std::string said = error.what();
      const bool good = said.find("did not come") != std::string::npos ||
                        said.find("left the group") != std::string::npos;
      return good ? "told" : said;
    }
    return "nobody noticed";
  });
  for (int r = 0; r + 1 < size_; ++r) EXPECT_EQ(results[static_cast<size_t>(r)], "told");
}

}  // namespace
}  // namespace refrain::worker
