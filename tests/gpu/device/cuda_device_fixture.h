#pragma once
// The CUDA device and a stream of it; tests are skipped where there is no GPU.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "worker/device/factory/factory.h"

namespace refrain::worker {

inline constexpr size_t kMiB = size_t{1} << 20;

class CudaDeviceFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    auto device = create_device("cuda", {});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    device_ = std::move(*device);
    stream_ = device_->create_stream();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace refrain::worker
