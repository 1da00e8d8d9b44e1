// us of a collective inside a graph, one process a GPU: 20 of them in a graph, launched back to
// back. Sums up to 32 MiB run over peer memory, larger ones over NCCL; sums of rows of 4096 also
// with the residual addition and RMSNorm behind them, in one kernel and in two; gathers (bytes a
// rank) both ways. usage: collective_bench RANKS [gather]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/comm/ranks.h"
#include "worker/comm/bench_access.h"
#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kInGraph = 20;

std::string bench(const std::string& token, int rank, int size, bool all) {
  auto device = create_device("cuda", {}, {rank, size});
  if (!device) return device.error().message;
  auto stream = (*device)->create_stream();
  auto joined = (*device)->create_communicator({token, rank, size, 20000});
  if (!joined) return joined.error().message;
  Communicator& group = **joined;
  constexpr size_t kLargest = size_t{64} << 20;
  auto in = (*device)->allocate(kLargest, MemoryTag::kOther);
  auto out = (*device)->allocate(kLargest * static_cast<size_t>(size), MemoryTag::kOther);
  auto weights = (*device)->allocate(size_t{4096} * sizeof(float), MemoryTag::kOther);
  const auto* weight = static_cast<const float*>(weights->data());
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
    std::vector<double> samples(7);
    for (double& each : samples) each = (run(12) - run(4)) / 8 / kInGraph;
    std::sort(samples.begin(), samples.end());
    text += fmt::format("{:<11} {:>9} bytes {:>8.2f} us ({:.2f}..{:.2f})\n", name, bytes,
                        samples[3], samples.front(), samples.back());
  };
  for (size_t kib : {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536}) {
    if (!all) break;
    const auto count = static_cast<int64_t>(kib * 512);
    time("all_reduce", kib * 1024, [&] {
      group.all_reduce(*stream, {in->data(), DType::kBFloat16, count}, count, {1, nullptr});
    });
  }
  for (int32_t rows : {1, 8, 32, 128, 256}) {
    if (!all) break;
    constexpr int32_t kCols = 4096;
    const auto bytes = static_cast<size_t>(rows) * kCols * 2;
    kernels::AddRmsNormArgs args;
    args.residual = {out->data(), DType::kBFloat16, kCols};
    args.delta = {in->data(), DType::kBFloat16, kCols};
    args.weight = weight;
    args.out = {static_cast<std::byte*>(out->data()) + bytes, DType::kBFloat16, kCols};
    args.cols = kCols;
    args.rows = {rows, nullptr};
    time("two kernels", bytes, [&] {
      group.all_reduce(*stream, args.delta, kCols, args.rows);
      (*device)->kernels().add_rms_norm(stream->ref(), args);
    });
    time("sum+norm", bytes, [&] {
      if (!group.all_reduce_add_rms_norm(*stream, args)) throw DeviceError("two kernels needed");
    });
  }
  for (size_t kib : {4, 16, 32, 64, 125, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}) {
    const auto count = static_cast<int64_t>(kib * 256);
    for (const char* way : {"exchange", "nccl"}) {
      bench_access(group).hold_to_sum_way(way);
      time(way == std::string("nccl") ? "gather nccl" : "gather ours", kib * 1024, [&] {
        group.all_gather(*stream, {in->data(), DType::kFloat32, count}, out->data(), count,
                         {1, nullptr});
      });
    }
    bench_access(group).hold_to_sum_way({});
  }
  return text;
}

}  // namespace
}  // namespace refrain::worker

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const bool all = argc < 3 || std::string(argv[2]) != "gather";
  const std::string token = refrain::worker::fresh_token();
  const auto results = refrain::worker::run_ranks(
      size, [&](int rank) { return refrain::worker::bench(token, rank, size, all); });
  std::printf("%d ranks, rank 0:\n%s", size, results[0].c_str());
  return 0;
}
