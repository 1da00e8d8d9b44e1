// Sums that linears make among ranks, without a collective of their own between them.
#include <chrono>
#include <cstring>
#include <random>
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

// Sums of rows that the linear before has sent beside the same of rows that it has not, in one
// graph, with any number of live rows and another sum in between: bit for bit, of small whole
// numbers, so that every sum is exact.
std::string check_sent_rows(Rank& rank, int64_t cols, int64_t inner, int32_t rows) {
  const auto bf16 = DType::kBFloat16;
  const auto bytes = static_cast<size_t>(rows * cols) * 2;
  std::vector<std::unique_ptr<Buffer>> buffers;
  const auto memory = [&](size_t size) {
    buffers.push_back(rank.device->allocate(size, MemoryTag::kOther));
    return buffers.back()->data();
  };
  const size_t weight_bytes = static_cast<size_t>(cols * inner) * 2;
  auto pinned = rank.device->allocate_pinned(std::max(weight_bytes, 4 * bytes));
  std::mt19937 random(static_cast<uint32_t>(rank.communicator->rank() + 7 * rows));
  const auto fill = [&](void* to, int64_t count, int64_t seed) {
    for (int64_t i = 0; i < count; ++i)
      put(pinned->data(), bf16, i,
          static_cast<float>(static_cast<int64_t>(random() % 15) - 7 + seed));
    rank.stream->copy(to, pinned->data(), static_cast<size_t>(count) * 2);
    rank.stream->synchronize();
  };
  const kernels::Matrix in{memory(static_cast<size_t>(rows * inner) * 2), bf16, inner};
  const kernels::Weight weight{memory(weight_bytes), bf16, kernels::WeightLayout::kRowMajor, cols,
                               inner};
  fill(const_cast<void*>(weight.data), cols * inner, 0);
  auto* live = static_cast<int32_t*>(memory(sizeof(int32_t)));
  auto* norm = static_cast<float*>(memory(static_cast<size_t>(cols) * 4));
  for (int64_t i = 0; i < cols; ++i)
    static_cast<float*>(pinned->data())[i] = 1.0f + 0.01f * static_cast<float>(i % 13);
  rank.stream->copy(norm, pinned->data(), static_cast<size_t>(cols) * 4);
  rank.stream->synchronize();
  const auto set_live = [&](int32_t count) {
    *static_cast<int32_t*>(pinned->data()) = count;
    rank.stream->copy(live, pinned->data(), sizeof(int32_t));
    rank.stream->synchronize();
  };
  set_live(rows);
  const kernels::Rows live_rows{rows, live};
  auto* results = static_cast<std::byte*>(memory(4 * bytes));  // residual and out of each way
  const kernels::Matrix delta{memory(bytes), bf16, cols}, other{memory(4096), bf16, 2048};
  const auto step = [&](bool sent) -> bool {
    auto* of = results + (sent ? 2 * bytes : 0);
    kernels::FusedLinearArgs linear;
    linear.linear = {in, weight, nullptr, {}, delta, live_rows};
    if (sent) linear.send = rank.communicator->sent_rows(rows, cols);
    rank.device->kernels().fused_linear(rank.stream->ref(), linear);
    return rank.communicator->all_reduce_add_rms_norm(*rank.stream,
                                                      {{of, bf16, cols},
                                                       delta,
                                                       norm,
                                                       {of + bytes, bf16, cols},
                                                       static_cast<int32_t>(cols),
                                                       1e-5f,
                                                       live_rows},
                                                      sent);
  };
  const auto steps = [&] {
    return step(false) && step(true) && step(true) && step(false) &&
           (rank.communicator->all_reduce(*rank.stream, other, 2048, {1, nullptr}), step(false)) &&
           step(true);
  };
  const bool sends = rank.communicator->sent_rows(rows, cols).size > 0;
  if (rank.communicator->size() == 2 && !sends) return "sends nothing";
  if (!steps()) return "refused";
  rank.stream->synchronize();
  rank.stream->begin_capture();
  if (!steps()) return "refused in capture";
  auto graph = rank.stream->end_capture();
  auto got = rank.device->allocate_pinned(4 * bytes);
  int round = 0;
  for (const int32_t count : {rows, 1, 0, rows / 2, rows - 1, 0, 2, rows}) {
    fill(in.data, rows * inner, round++ % 3);
    std::memset(pinned->data(), 0, 4 * bytes);
    rank.stream->copy(results, pinned->data(), 4 * bytes);
    rank.stream->synchronize();
    set_live(count);
    rank.stream->launch(*graph);
    rank.stream->copy(got->data(), results, 4 * bytes);
    rank.stream->synchronize();
    const auto* both = static_cast<const std::byte*>(got->data());
    if (std::memcmp(both, both + 2 * bytes, 2 * bytes) != 0)
      return fmt::format("{} live of {} rows of {} by {} differ", count, rows, cols, inner);
    const auto* added = reinterpret_cast<const uint16_t*>(both);
    if (std::any_of(added, added + rows * cols, [](uint16_t x) { return x != 0; }) != (count > 0))
      return "what was added is not what is live";
  }
  return "good";
}

TEST_P(PeerSums, LinearsSendRowsThatTheSumTakes) {
  expect_all(
      run_ranks(size_,
                [&](int r) -> std::string {
                  Rank rank(token_, r, size_, 3000);
                  std::string all;
                  for (const auto& [cols, inner] : std::vector<std::pair<int64_t, int64_t>>{
                           {4096, 2048}, {2048, 1024}, {2048, 4096}, {3584, 9472}, {200, 192}})
                    for (const int32_t rows : {3, 5, 8, 16, 24, 31, 48, 56, 72, 80}) {
                      const std::string said = check_sent_rows(rank, cols, inner, rows);
                      if (said != "good") all += said + "\n";
                    }
                  return all.empty() ? "good" : all;
                }),
      "good");
}

// The last rank stays away; the others launch something, leave by their deadline and are told.
template <class Launch>
void expect_told_of_absence(const std::string& token, int size, Launch launch) {
  const auto results = run_ranks(size, [&](int r) -> std::string {
    Rank rank(token, r, size, 1500);
    rank.communicator->reserve_peer_sums(1, 64);
    if (r == size - 1) {
      std::this_thread::sleep_for(std::chrono::seconds(4));  // past the others' deadline
      return "stayed away";
    }
    auto memory = rank.device->allocate(64 * 64 * 16, MemoryTag::kOther);
    launch(rank, static_cast<std::byte*>(memory->data()));
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
  for (int r = 0; r + 1 < size; ++r) EXPECT_EQ(results[static_cast<size_t>(r)], "told");
}

TEST_P(PeerSums, APeerSumThatOneRankNeverJoinsEndsByItsDeadline_R9) {
  expect_told_of_absence(token_, size_, [](Rank& rank, std::byte* memory) {
    const auto bf16 = DType::kBFloat16;
    const kernels::Matrix out{memory, bf16, 64};
    kernels::FusedLinearArgs pull;
    pull.linear = {{memory + 4096, bf16, 64},
                   {memory, bf16, kernels::WeightLayout::kRowMajor, 16, 64},
                   nullptr,
                   {},
                   out,
                   {1, nullptr}};
    pull.norm = reinterpret_cast<const float*>(memory);
    pull.sum_out = {memory + 8192, bf16, 64};
    pull.delta = {memory + 12288, bf16, 64};
    pull.pull = rank.communicator->peer_sum(*rank.stream, 0, {1, nullptr});
    rank.device->kernels().fused_linear(rank.stream->ref(), pull);
  });
}

TEST_P(PeerSums, ASumOfSentRowsThatOneRankNeverJoinsEndsByItsDeadline_R9) {
  expect_told_of_absence(token_, size_, [](Rank& rank, std::byte* memory) {
    const auto bf16 = DType::kBFloat16;
    const kernels::Rows rows{8, nullptr};
    const auto matrix = [&](int at) {
      return kernels::Matrix{memory + 32768 + at * 1024, bf16, 64};
    };
    kernels::FusedLinearArgs linear;
    linear.linear = {{memory, bf16, 192},
                     {memory + 4096, bf16, kernels::WeightLayout::kRowMajor, 64, 192},
                     nullptr,
                     {},
                     matrix(0),
                     rows};
    linear.send = rank.communicator->sent_rows(rows.padded, 64);
    rank.device->kernels().fused_linear(rank.stream->ref(), linear);
    const kernels::AddRmsNormArgs sum{
        matrix(1), matrix(0), reinterpret_cast<const float*>(memory), matrix(2), 64, 1e-5f, rows};
    if (!rank.communicator->all_reduce_add_rms_norm(*rank.stream, sum, true))
      throw DeviceError("no sum of such rows");
  });
}

}  // namespace
}  // namespace refrain::worker
