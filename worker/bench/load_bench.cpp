#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/base/processors.h"
#include "runtime/base/unique_handle.h"
#include "worker/bench/kinds.h"
#include "worker/weights/weight_source.h"
#include "worker/weights/weights.h"

namespace refrain::worker {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kBlock = size_t{8} << 20;
constexpr unsigned kMostReaders = 8;
constexpr int kReadRuns = 10;

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// Bytes a second that `readers` threads together read of the files, in blocks as the loader does.
double read_files(const std::vector<fs::path>& files, unsigned readers) {
  struct Part {
    int fd;
    size_t offset, bytes;
  };
  std::vector<UniqueFd> open_files;
  std::vector<Part> parts;
  size_t total = 0;
  for (const fs::path& file : files) {
    open_files.emplace_back(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    REFRAIN_CHECK(open_files.back().get() >= 0, "{} cannot be opened: {}", file.string(),
                  std::strerror(errno));
    const size_t size = fs::file_size(file);
    for (size_t at = 0; at < size; at += kBlock) {
      parts.push_back({open_files.back().get(), at, std::min(kBlock, size - at)});
    }
    total += size;
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> short_read{false};
  const auto read = [&] {
    std::vector<char> to(kBlock);
    for (size_t i = next++; i < parts.size(); i = next++) {
      const Part& part = parts[i];
      const ssize_t got = ::pread(part.fd, to.data(), part.bytes, static_cast<off_t>(part.offset));
      if (got != static_cast<ssize_t>(part.bytes)) short_read = true;
    }
  };
  const auto begun = Clock::now();
  std::vector<std::thread> team;
  for (unsigned i = 1; i < readers; ++i) team.emplace_back(read);
  read();
  for (std::thread& thread : team) thread.join();
  const double seconds = seconds_since(begun);
  REFRAIN_CHECK(!short_read, "a file of the checkpoint was not read whole");
  return static_cast<double>(total) / seconds;
}

}  // namespace

Result<double> LoadBench::load_once(size_t& bytes) {
  BenchDevice& device = s_.device;
  device.group().barrier();
  const auto begun = Clock::now();
  const auto load = [&] {
    return s_.options.config.load_dummy
               ? make_dummy_weights(s_.program, s_.model, s_.options.config.seed, device.device(),
                                    device.stream(), {})
               : load_weights(s_.program, s_.model, s_.options.model, device.device(),
                              device.stream(), {});
  };
  REFRAIN_ASSIGN_OR_RETURN(const Weights weights, load());
  device.stream().synchronize();
  bytes = weights.bytes;
  return seconds_since(begun);
}

// Reading and copying overlap in the loader, so the slower of the two is the limit. Made-up weights
// are written where they are made.
Result<LoadBench::Copied> LoadBench::copy_limit() {
  BenchDevice& device = s_.device;
  if (s_.options.config.load_dummy) {
    const Pool pool(device, s_.options.pool_bytes, 0);
    const double copied = measure_copy(device, pool);
    return Copied{copied, "memory written on the device, measured", {{"copy_limit", copied}}};
  }
  const auto from = device.device().allocate_pinned(s_.options.pool_bytes / 2);
  std::memset(from->data(), 1, from->bytes());
  const auto to = device.scratch(from->bytes());
  const double copied = static_cast<double>(from->bytes()) / device.least_time([&](int) {
    device.stream().copy(to->data(), from->data(), from->bytes());
  });
  REFRAIN_ASSIGN_OR_RETURN(const auto files, checkpoint_files(s_.options.model));
  const unsigned cores = std::min(static_cast<unsigned>(usable_processors()), kMostReaders);
  double read = 0;
  for (int run = 0; run < kReadRuns; ++run) {
    read = std::max({read, read_files(files, 1), read_files(files, cores)});
  }
  return Copied{std::min(copied, read),
                read < copied ? "reading from the page cache, measured"
                              : "copying from host memory to the device, measured",
                {{"copy_limit", copied}, {"page_cache_limit", read}}};
}

Status LoadBench::run() {
  size_t bytes = 0;
  REFRAIN_ASSIGN_OR_RETURN(const double first, load_once(bytes));  // brings the files into memory
  RankCase one;
  one.unit = "seconds";
  for (int run = 0; run < s_.options.runs; ++run) {
    REFRAIN_ASSIGN_OR_RETURN(const double seconds, load_once(bytes));
    one.samples.push_back(seconds);
  }
  s_.device.group().barrier();
  REFRAIN_ASSIGN_OR_RETURN(Copied copied, copy_limit());
  one.achieved = static_cast<double>(bytes) / median(one.samples);
  one.limit = copied.limit;
  one.limit_source = copied.source;
  one.more = std::move(copied.more);
  one.more["what"] = s_.options.config.load_dummy ? "dummy" : "safetensors";
  one.more["rank"] = s_.options.rank;
  one.more["bytes"] = bytes;
  one.more["gb_s"] = one.achieved * 1e-9;
  one.more["first_seconds"] = first;
  s_.cases.write(std::move(one));
  s_.device.group().barrier();
  return {};
}

}  // namespace refrain::worker
