#pragma once
// Ranks with a GPU each for the tests of collectives. The test's own process never touches CUDA, so
// that its forked ranks can.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/comm/ranks.h"
#include "worker/comm/communicator.h"
#include "worker/device/factory/factory.h"

namespace refrain::worker {

inline constexpr int kTimeoutMs = 20000;

inline int count_gpus() {
  int count = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) ++count;
  return count;
}

// What a rank needs, in the order in which it must not be destroyed.
struct Rank {
  Rank(const std::string& token, int rank, int size, int timeout_ms = kTimeoutMs) {
    auto made = create_device("cuda", {}, {rank, size});
    if (!made) throw DeviceError(made.error().message);
    device = std::move(*made);
    stream = device->create_stream();
    auto joined = device->create_communicator({token, rank, size, timeout_ms});
    if (!joined) throw DeviceError(joined.error().message);
    communicator = std::move(*joined);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> communicator;
};

class GpuGroup : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (count_gpus() < size_) GTEST_SKIP() << "needs " << size_ << " GPUs";
  }
  void TearDown() override { EXPECT_TRUE(segments_of(token_).empty()); }
  void expect_all(const std::vector<std::string>& results, const std::string& expected) {
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(results[rank], expected) << "rank " << rank;
    }
  }
  int size_ = GetParam();
  std::string token_ = fresh_token();
};
inline void put(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<BFloat16*>(data)[index] = to_bfloat16(value);
  }
}
inline float get(const void* data, DType dtype, int64_t index) {
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[index]
                                  : to_float(static_cast<const BFloat16*>(data)[index]);
}

}  // namespace refrain::worker
