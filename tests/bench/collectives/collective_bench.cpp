// us of a collective inside a graph, one process a GPU: 20 of them in a graph, launched back to
// back. Sums up to 256 KiB run over peer memory, larger ones and gathers over NCCL.
// usage: collective_bench RANKS

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/device/ranks.h"
#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kInGraph = 20;

std::string bench(const std::string& token, int rank, int size) {
  auto device = create_device("cuda", {}, {rank, size});
  if (!device) return device.error().message;
  auto stream = (*device)->create_stream();
  auto joined = (*device)->create_communicator(token, rank, size, 20000);
  if (!joined) return joined.error().message;
  Communicator& group = **joined;
  constexpr size_t kLargest = size_t{16} << 20;
  auto in = (*device)->allocate(kLargest, MemoryTag::kOther);
  auto out = (*device)->allocate(kLargest * static_cast<size_t>(size), MemoryTag::kOther);
  std::string text;
  const auto time = [&](const char* name, size_t bytes, const auto& collective) {
    collective();
    stream->synchronize();
    stream->begin_capture();
    for (int i = 0; i < kInGraph; ++i) collective();
    auto graph = stream->end_capture();
    const auto run = [&](int launches) {
      stream->synchronize();
      group.barrier();
      const auto begun = Clock::now();
      for (int i = 0; i < launches; ++i) stream->launch(*graph);
      stream->synchronize();
      return std::chrono::duration<double, std::micro>(Clock::now() - begun).count();
    };
    run(2);
    std::vector<double> samples;
    for (int i = 0; i < 7; ++i) samples.push_back((run(12) - run(4)) / 8 / kInGraph);
    std::sort(samples.begin(), samples.end());
    text += fmt::format("{:<11} {:>9} bytes {:>8.2f} us ({:.2f}..{:.2f})\n", name, bytes,
                        samples[3], samples.front(), samples.back());
  };
  for (size_t kib : {4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192}) {
    const auto count = static_cast<int64_t>(kib * 512);
    time("all_reduce", kib * 1024, [&] {
      group.all_reduce(*stream, {in->data(), DType::kBFloat16, count}, count, {1, nullptr});
    });
  }
  for (size_t kib : {128, 512, 1024, 4096, 8192, 16384}) {
    const auto count = static_cast<int64_t>(kib * 256);
    time("all_gather", kib * 1024, [&] {
      group.all_gather(*stream, {in->data(), DType::kFloat32, count}, out->data(), count,
                       {1, nullptr});
    });
  }
  return text;
}

}  // namespace
}  // namespace refrain::worker

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string token = refrain::worker::fresh_token();
  const auto results = refrain::worker::run_ranks(
      size, [&](int rank) { return refrain::worker::bench(token, rank, size); });
  std::printf("%d ranks, rank 0:\n%s", size, results[0].c_str());
  return 0;
}
