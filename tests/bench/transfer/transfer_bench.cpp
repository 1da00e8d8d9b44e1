// KV blocks from one GPU to another of the same machine, as a rank of a decode group reads them:
// mapped memory, copied by the reader in slices, blocks in no order. Prints GB/s beside the copy
// limit of the pair, one copy of the whole.
//
// usage: transfer_bench [MIB]      (1024)

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

constexpr size_t kSlice = size_t{256} << 20;

// GB/s, the best of five.
template <class Call>
double rate(size_t bytes, const Call& call) {
  double best = 0;
  for (int run = 0; run < 6; ++run) {
    const auto begun = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (run > 0) best = std::max(best, static_cast<double>(bytes) / took.count() / 1e9);
  }
  return best;
}

void copy_in_slices(Copier& copier, const std::vector<CopyPiece>& pieces) {
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin, bytes = 0;
    while (end < pieces.size() && bytes < kSlice) bytes += pieces[end++].bytes;
    copier.copy_all({pieces.data() + begin, end - begin});
    copier.finish();
    begin = end;
  }
}

int run(size_t bytes) {
  if (count_cuda_devices() < 2) {
    fmt::print(stderr, "transfer_bench needs two GPUs\n");
    return 69;
  }
  CudaDeviceOptions options;
  options.local_rank = 0;
  auto there = create_device("cuda", {}, options);
  if (!there) return fmt::print(stderr, "{}\n", there.error().message), 70;
  const auto memory = (*there)->reserve(bytes, MemoryTag::kKvCache);
  memory->back(bytes);
  const std::vector<SharedPiece> pieces = (*there)->share(memory->data(), bytes);
  options.local_rank = 1;
  auto here = create_device("cuda", {}, options);
  if (!here) return fmt::print(stderr, "{}\n", here.error().message), 70;
  const auto to = (*here)->allocate(bytes, MemoryTag::kKvCache);
  const auto copier = (*here)->create_copier();
  auto mapped = copier->map(pieces);
  if (!mapped) return fmt::print(stderr, "{}\n", mapped.error().message), 70;
  const double limit = rate(bytes, [&] {
    copier->copy(to->data(), (*mapped)->data(), bytes);
    copier->finish();
  });
  fmt::print("{:>12}  {:>8}  {}\n{:>12}  {:8.1f}\n", "block", "GB/s", "of limit", "one copy",
             limit);
  for (const size_t kib : {4, 16, 64, 256, 2048}) {
    const size_t block = kib << 10, count = bytes / block;
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    std::vector<CopyPiece> blocks;
    for (size_t i = 0; i < count; ++i)
      blocks.push_back({static_cast<std::byte*>(to->data()) + i * block,
                        (*mapped)->data() + order[i] * block, block});
    const double got = rate(bytes, [&] { copy_in_slices(*copier, blocks); });
    fmt::print("{:>8} KiB  {:8.1f}  {:.0f} %\n", kib, got, 100 * got / limit);
  }
  return 0;
}

}  // namespace
}  // namespace refrain::worker

int main(int argc, char** argv) {
  const size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024;
  return refrain::worker::run(mib << 20);
}
