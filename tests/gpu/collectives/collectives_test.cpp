// Collectives between GPUs, one process each. The test's own process never touches CUDA, so that
// its forked ranks can.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/gpu/collectives/gpu_group.h"
#include "worker/comm/bench_access.h"

namespace refrain::worker {
namespace {

INSTANTIATE_TEST_SUITE_P(Ranks, GpuGroup, testing::Values(2, 4));

// Values whose float32 sum depends on the order of adding.
float value_of(int rank, int64_t index, int round) {
  const float sign = (index + rank) % 2 == 0 ? 1.0f : -1.0f;
  return sign * (1.0f + static_cast<float>((index * 7919 + rank * 104729 + round * 31) % 9973)) *
         (rank % 2 == 0 ? 1e4f : 1e-3f);
}

// Sums of several sizes, in turn, replayed from graphs: exact rank-order sums up to 32 MiB.
std::string check_sums(Rank& rank, int size, DType dtype) {
  constexpr size_t kOurs = size_t{32} << 20;
  const std::vector<int64_t> counts = {1, 3, 4096, 5000, 131072, 131073, 700001, 4200001, 8500001};
  for (const int64_t count : counts) {
    const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
    auto data = rank.device->allocate(bytes, MemoryTag::kOther);
    auto pinned = rank.device->allocate_pinned(bytes);
    const auto sum = [&] {
      rank.communicator->all_reduce(*rank.stream, {data->data(), dtype, count}, count,
                                    {1, nullptr});
    };
    rank.stream->copy(data->data(), pinned->data(), bytes);
    sum();
    rank.stream->synchronize();
    rank.stream->begin_capture();
    rank.stream->copy(data->data(), pinned->data(), bytes);
    sum();
    auto graph = rank.stream->end_capture();
    auto result = rank.device->allocate_pinned(bytes);
    for (int round = 0; round < 5; ++round) {
      const int me = rank.communicator->rank();
      for (int64_t i = 0; i < count; ++i) put(pinned->data(), dtype, i, value_of(me, i, round));
      rank.stream->launch(*graph);
      rank.stream->copy(result->data(), data->data(), bytes);
      rank.stream->synchronize();
      for (int64_t i = 0; i < count; ++i) {
        float expected = 0, magnitude = 0;
        for (int r = 0; r < size; ++r) {
          float one[1];
          put(one, dtype, 0, value_of(r, i, round));
          expected += get(one, dtype, 0);
          magnitude += std::abs(get(one, dtype, 0));
        }
        put(&expected, dtype, 0, expected);
        const float wanted = get(&expected, dtype, 0), got = get(result->data(), dtype, i);
        const bool good = bytes <= kOurs || size == 2 ? got == wanted
                                                      : std::abs(got - wanted) <= magnitude * 0.01f;
        if (!good) return fmt::format("{} of {}: {} is not {}", i, count, got, wanted);
      }
    }
  }
  return "good";
}

TEST_P(GpuGroup, SumsAreMadeInRankOrder) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    token_ = fresh_token();
    expect_all(run_ranks(size_,
                         [&](int r) {
                           Rank rank(token_, r, size_);
                           return check_sums(rank, size_, dtype);
                         }),
               "good");
  }
}

// Sum, residual addition and RMSNorm in one kernel and as two operations, on the same numbers.
std::string check_norms(Rank& rank) {
  const int me = rank.communicator->rank();
  const auto bf16 = DType::kBFloat16;
  const std::pair<int32_t, int32_t> shapes[] = {{1, 4096}, {3, 24},   {33, 4096}, {128, 4096},
                                                {7, 8192}, {2, 1000}, {128, 8192}};
  for (const auto& [rows, cols] : shapes) {
    const int64_t count = int64_t{rows} * cols;
    const auto bytes = static_cast<size_t>(count) * 2;
    auto pinned = rank.device->allocate_pinned(2 * bytes);
    auto memory = rank.device->allocate(6 * bytes, MemoryTag::kOther);
    auto weights = rank.device->allocate(static_cast<size_t>(cols) * 4, MemoryTag::kOther);
    auto results = rank.device->allocate_pinned(4 * bytes);
    auto live = rank.device->allocate(sizeof(int32_t), MemoryTag::kOther);
    auto host = rank.device->allocate_pinned(static_cast<size_t>(cols) * 4);
    auto* weight = static_cast<float*>(host->data());
    for (int64_t i = 0; i < cols; ++i) weight[i] = 1.0f + 0.01f * static_cast<float>(i % 13);
    rank.stream->copy(weights->data(), weight, static_cast<size_t>(cols) * 4);
    rank.stream->synchronize();
    *reinterpret_cast<int32_t*>(weight) = std::max(1, rows - 1);
    rank.stream->copy(live->data(), weight, sizeof(int32_t));
    rank.stream->synchronize();
    auto* at = static_cast<std::byte*>(memory->data());
    const auto matrix = [&](int i) {
      return kernels::Matrix{at + static_cast<size_t>(i) * bytes, bf16, cols};
    };
    const auto args = [&](int set) {  // residual, out, delta
      return kernels::AddRmsNormArgs{matrix(set * 2),
                                     matrix(4 + set),
                                     static_cast<const float*>(weights->data()),
                                     matrix(set * 2 + 1),
                                     cols,
                                     1e-5f,
                                     {rows, static_cast<const int32_t*>(live->data())}};
    };
    for (int round = 0; round < 6; ++round) {
      for (int64_t i = 0; i < count; ++i) {
        put(pinned->data(), bf16, i, value_of(me, i, round));
        put(pinned->data(), bf16, count + i, value_of(0, i, round + 100) * 0.5f);
      }
      for (int set = 0; set < 2; ++set) {
        const auto a = args(set);
        rank.stream->copy(a.delta.data, pinned->data(), bytes);
        rank.stream->copy(a.residual.data, static_cast<std::byte*>(pinned->data()) + bytes, bytes);
        rank.stream->copy(a.out.data, static_cast<std::byte*>(pinned->data()) + bytes, bytes);
      }
      rank.communicator->all_reduce(*rank.stream, args(0).delta, cols, args(0).rows);
      rank.device->kernels().add_rms_norm(rank.stream->ref(), args(0));
      if (!rank.communicator->all_reduce_add_rms_norm(*rank.stream, args(1))) return "refused";
      rank.stream->copy(results->data(), memory->data(), 4 * bytes);
      rank.stream->synchronize();
      const auto* two = static_cast<const std::byte*>(results->data());
      if (std::memcmp(two, two + 2 * bytes, 2 * bytes) != 0) {
        return fmt::format("{} rows of {} differ in round {}", rows, cols, round);
      }
    }
  }
  return "good";
}

TEST_P(GpuGroup, SumWithAdditionAndNormIsTheTwoOperations) {
  expect_all(run_ranks(size_,
                       [&](int r) {
                         Rank rank(token_, r, size_);
                         return check_norms(rank);
                       }),
             "good");
}

// Gathers of several sizes with a sum between two of them, replayed from graphs: every bit of every
// rank, by our own kernels up to 32 MiB and by NCCL.
std::string check_gathers(Rank& rank, int size, DType dtype) {
  const std::vector<int64_t> counts = {1, 6, 1000, 4097, 131072, 700001, 4300000, 9000001};
  const auto bits = [](int r, int64_t index, int round) {
    const auto mixed = static_cast<uint32_t>(index * 2654435761 + r * 40503 + round * 7919);
    return index % 97 == 0 ? 0xff800000u : mixed & 0xfeffffffu;  // -inf; never all ones
  };
  for (const int64_t count : counts) {
    const auto words = (static_cast<size_t>(count) * size_of(dtype) + 3) / 4;
    const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
    const size_t all = bytes * static_cast<size_t>(size);
    auto in = rank.device->allocate(bytes, MemoryTag::kOther);
    auto out = rank.device->allocate(2 * all, MemoryTag::kOther);
    auto data = rank.device->allocate(4096, MemoryTag::kOther);
    auto given = rank.device->allocate_pinned(words * 4);
    auto result = rank.device->allocate_pinned(2 * all);
    auto* second = static_cast<std::byte*>(out->data()) + all;
    const auto gather = [&](void* to) {
      rank.communicator->all_gather(*rank.stream, {in->data(), dtype, count}, to, count,
                                    {1, nullptr});
    };
    const auto step = [&] {
      gather(out->data());
      rank.communicator->all_reduce(*rank.stream, {data->data(), DType::kFloat32, 1000}, 1000,
                                    {1, nullptr});
      gather(second);
    };
    step();
    rank.stream->synchronize();
    rank.stream->begin_capture();
    rank.stream->copy(in->data(), given->data(), bytes);
    step();
    auto graph = rank.stream->end_capture();
    std::vector<uint32_t> expected(words);
    const int rounds = count > 1000000 ? 2 : 5;
    for (int round = 0; round < rounds; ++round) {
      auto* mine = static_cast<uint32_t*>(given->data());
      for (size_t i = 0; i < words; ++i) {
        mine[i] = bits(rank.communicator->rank(), static_cast<int64_t>(i), round);
      }
      std::memset(result->data(), 0x55, 2 * all);
      rank.stream->copy(out->data(), result->data(), 2 * all);
      rank.stream->launch(*graph);
      rank.stream->copy(result->data(), out->data(), 2 * all);
      rank.stream->synchronize();
      for (int r = 0; r < 2 * size; ++r) {
        for (size_t i = 0; i < words; ++i) {
          expected[i] = bits(r % size, static_cast<int64_t>(i), round);
        }
        const auto* got = static_cast<const std::byte*>(result->data());
        if (std::memcmp(got + static_cast<size_t>(r) * bytes, expected.data(), bytes) != 0) {
          return fmt::format("{} bytes of rank {} differ in round {}", bytes, r % size, round);
        }
      }
    }
  }
  return "good";
}

TEST_P(GpuGroup, GathersKeepEveryBit) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const char* way : {"", "nccl"}) {
      token_ = fresh_token();
      expect_all(run_ranks(size_,
                           [&](int r) {
                             Rank rank(token_, r, size_);
                             bench_access(*rank.communicator).hold_to_sum_way(way);
                             return check_gathers(rank, size_, dtype);
                           }),
                 "good");
    }
  }
}

TEST_P(GpuGroup, AGatherThatOneRankNeverJoinsEndsByItsDeadline_R9) {
  const auto results = run_ranks(size_, [&](int r) -> std::string {
    Rank rank(token_, r, size_, 1500);
    if (r == size_ - 1) {
      std::this_thread::sleep_for(std::chrono::seconds(4));  // past the others' deadline
      return "stayed away";
    }
    constexpr int64_t kCount = 32064;
    auto memory =
        rank.device->allocate(kCount * 4 * static_cast<size_t>(size_ + 1), MemoryTag::kOther);
    auto* in = static_cast<std::byte*>(memory->data()) + kCount * 4 * size_;
    rank.communicator->all_gather(*rank.stream, {in, DType::kFloat32, kCount}, memory->data(),
                                  kCount, {1, nullptr});
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

TEST_P(GpuGroup, GathersAndBroadcasts) {
  const auto body = [&](int r) -> std::string {
    Rank rank(token_, r, size_);
    constexpr int64_t kCols = 1000;
    constexpr int kRows = 3;
    const size_t bytes = kCols * kRows * sizeof(float);
    auto in = rank.device->allocate(bytes, MemoryTag::kOther);
    auto out = rank.device->allocate(bytes * static_cast<size_t>(size_), MemoryTag::kOther);
    auto pinned = rank.device->allocate_pinned(bytes * static_cast<size_t>(size_));
    auto* values = static_cast<float*>(pinned->data());
    for (int64_t i = 0; i < kCols * kRows; ++i) values[i] = static_cast<float>(r * 10000 + i);
    rank.stream->copy(in->data(), values, bytes);
    rank.communicator->all_gather(*rank.stream, {in->data(), DType::kFloat32, kCols}, out->data(),
                                  kCols, {kRows, nullptr});
    rank.communicator->broadcast(*rank.stream, in->data(), bytes, size_ - 1);
    rank.stream->copy(values, out->data(), out->bytes());
    rank.stream->synchronize();
    for (int peer = 0; peer < size_; ++peer) {
      for (int64_t i = 0; i < kCols * kRows; ++i) {
        if (values[peer * kCols * kRows + i] != static_cast<float>(peer * 10000 + i)) {
          return fmt::format("gathered {} of rank {} is wrong", i, peer);
        }
      }
    }
    rank.stream->copy(values, in->data(), bytes);
    rank.stream->synchronize();
    for (int64_t i = 0; i < kCols * kRows; ++i) {
      if (values[i] != static_cast<float>((size_ - 1) * 10000 + i)) return "broadcast is wrong";
    }
    rank.communicator->barrier();
    return "good";
  };
  expect_all(run_ranks(size_, body), "good");
}

// The last rank dies while the others wait for it inside a sum or a gather, small (peer memory) or
// large (NCCL): they leave with an error that names it, well before the deadline.
std::string wait_for_the_dead(const std::string& token, int r, int size, int64_t count,
                              bool gathers) {
  const auto lost = fmt::format("rank {} ", size - 1);
  const auto begun = std::chrono::steady_clock::now();
  try {
    Rank rank(token, r, size);
    auto data = rank.device->allocate(static_cast<size_t>(count) * 2, MemoryTag::kOther);
    auto out = rank.device->allocate(data->bytes() * static_cast<size_t>(size), MemoryTag::kOther);
    const auto meet = [&] {
      const kernels::Matrix matrix{data->data(), DType::kBFloat16, count};
      if (gathers) {
        rank.communicator->all_gather(*rank.stream, matrix, out->data(), count, {1, nullptr});
      } else {
        rank.communicator->all_reduce(*rank.stream, matrix, count, {1, nullptr});
      }
    };
    meet();
    rank.stream->synchronize();
    rank.communicator->barrier();
    if (r == size - 1) kill(getpid(), SIGKILL);
    meet();
    rank.stream->synchronize();
    return "it ended";
  } catch (const DeviceError& error) {
    const std::string what = error.what();
    const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun);
    if (what.find(lost) == std::string::npos && what.find("gave up") == std::string::npos) {
      return what;
    }
    return seconds.count() < 15 ? "left" : fmt::format("left after {} s", seconds.count());
  }
}

TEST_P(GpuGroup, R7ADeadRankEndsTheOthersAndIsNamed) {
  for (const bool gathers : {false, true}) {
    for (const int64_t count : {int64_t{4096}, int64_t{1} << 20, int64_t{17} << 20}) {
      token_ = fresh_token();
      const auto results = run_ranks(
          size_, [&](int r) { return wait_for_the_dead(token_, r, size_, count, gathers); });
      for (int r = 0; r + 1 < size_; ++r) {
        EXPECT_EQ(results[static_cast<size_t>(r)], "left") << count << gathers;
      }
      EXPECT_EQ(results.back(), "killed by signal 9");
    }
  }
}

TEST_P(GpuGroup, OneGpuForTwoRanksIsRefused) {
  const auto body = [&](int r) -> std::string {
    auto device = create_device("cuda", {}, {0, 1});
    if (!device) return device.error().message;
    auto joined = (*device)->create_communicator({token_, r, size_, kTimeoutMs});
    return joined ? "joined" : joined.error().field;
  };
  expect_all(run_ranks(size_, body), "rank");
}

}  // namespace
}  // namespace refrain::worker
