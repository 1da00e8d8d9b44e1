// Overheads of the host device: replay of a graph per node, an eager launch, and the exchange of a
// small all_reduce between processes. Prints one JSON object a case: nanoseconds, median and
// spread of `runs`.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/host/launcher.h"
#include "runtime/base/json.h"
#include "worker/comm/communicator.h"
#include "worker/device/factory/factory.h"

namespace {

using namespace refrain;
using namespace refrain::worker;

constexpr int kRuns = 31;

struct NothingArgs {
  int64_t numbers[16];  // about as many bytes as a real op's arguments
};
void nothing(const NothingArgs&, const kernels::Team&) {}

std::unique_ptr<Device> make_device(int threads) {
  auto device = create_device("host", {threads, "", 0});
  REFRAIN_CHECK(device.has_value(), "{}", device.error().message);
  return std::move(*device);
}

// Nanoseconds a unit: each run calls `body`, which does `units`.
std::vector<double> measure(double units, const std::function<void()>& body) {
  std::vector<double> times;
  body();
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / units);
  }
  std::sort(times.begin(), times.end());
  return times;
}

void report(const std::string& name, int threads, int ranks, const std::vector<double>& times) {
  nlohmann::ordered_json line;
  line["case"] = name;
  line["unit"] = "ns";
  line["threads"] = threads;
  line["ranks"] = ranks;
  line["runs"] = times.size();
  line["min"] = times.front();
  line["median"] = times[times.size() / 2];
  line["p99"] = times.back();
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void bench_replay(int threads, bool single) {
  constexpr int kNodes = 300;
  constexpr int kReplays = 200;
  auto device = make_device(threads);
  auto stream = device->create_stream();
  stream->begin_capture();
  for (int i = 0; i < kNodes; ++i) {
    kernels::launch<nothing>(stream->ref(), NothingArgs{}, "nothing", single);
  }
  auto graph = stream->end_capture();
  report(single ? "graph_replay_single_node" : "graph_replay_node", threads, 1,
         measure(kNodes * kReplays, [&] {
           for (int i = 0; i < kReplays; ++i) stream->launch(*graph);
         }));
}

void bench_eager(int threads) {
  constexpr int kLaunches = 20000;
  auto device = make_device(threads);
  auto stream = device->create_stream();
  report("eager_launch", threads, 1, measure(kLaunches, [&] {
           for (int i = 0; i < kLaunches; ++i) {
             kernels::launch<nothing>(stream->ref(), NothingArgs{}, "nothing");
           }
         }));
}

void reduce_rank(int rank, int ranks, int threads, int64_t cols, const std::string& token) {
  constexpr int kReduces = 500;
  auto device = make_device(threads);
  auto stream = device->create_stream();
  auto communicator = device->create_communicator({token, rank, ranks, 20000});
  REFRAIN_CHECK(communicator.has_value(), "{}", communicator.error().message);
  std::vector<float> data(static_cast<size_t>(cols));
  stream->begin_capture();
  for (int i = 0; i < kReduces; ++i) {
    (*communicator)->all_reduce(*stream, {data.data(), DType::kFloat32, cols}, cols, {1, nullptr});
  }
  auto graph = stream->end_capture();
  const auto times = measure(kReduces, [&] { stream->launch(*graph); });
  if (rank == 0) report(fmt::format("all_reduce_{}_float32", cols), threads, ranks, times);
}

void bench_all_reduce(int ranks, int threads, int64_t cols) {
  const std::string token = fmt::format("bench-{}-{}-{}-{}", getpid(), ranks, threads, cols);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    REFRAIN_CHECK(pid >= 0, "no process");
    if (pid == 0) {
      reduce_rank(rank, ranks, threads, cols, token);
      std::fflush(stdout);
      _exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    REFRAIN_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a rank failed");
  }
}

}  // namespace

int main() {
  for (const int threads : {1, 2}) {
    bench_replay(threads, false);
    bench_replay(threads, true);
    bench_eager(threads);
  }
  for (const int ranks : {2, 3}) {
    for (const int64_t cols : {576, 65536}) bench_all_reduce(ranks, 1, cols);
  }
  return 0;
}
