#pragma once
// What the op tests need of a device: memory, copies, a stream and a kernel table. The test bodies
// speak only to this, so that another device runs the same bodies. One test owns one harness;
// its memory lives as long as it does.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/kernel_table.h"
#include "kernels/host/isa.h"

namespace refrain::kernels {

inline constexpr DType kBf16 = DType::kBFloat16;

class Harness {
 public:
  virtual ~Harness() = default;
  virtual const KernelTable& table() const = 0;
  virtual StreamRef stream() = 0;
  virtual void* allocate(size_t bytes) = 0;  // every byte 0xff: NaN in any float type
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;  // waits for the stream

  // What a device promises differently: the host the strictest, others say so here.
  virtual WeightLayout weight_layout() const { return WeightLayout::kTiled16; }
  virtual bool bitwise_across_keys() const { return true; }  // rows keep their bits in every batch
  virtual bool writes_dead_rows() const { return false; }    // linear may write rows past the live
  virtual double attention_error(DType) const { return 2e-5; }  // absolute, beside the rounding

  template <class T>
  T* put(const std::vector<T>& values) {
    T* device = static_cast<T*>(allocate(std::max<size_t>(1, values.size()) * sizeof(T)));
    if (!values.empty()) upload(device, values.data(), values.size() * sizeof(T));
    return device;
  }
  template <class T>
  std::vector<T> get(const T* device, size_t count) {
    std::vector<T> values(count);
    download(values.data(), device, count * sizeof(T));
    return values;
  }
  template <class T>
  T* fresh(size_t count) {
    return static_cast<T*>(allocate(count * sizeof(T)));
  }
};

std::unique_ptr<Harness> make_host_harness(HostIsa isa, int threads);

struct HarnessChoice {
  std::string name;
  std::function<std::unique_ptr<Harness>()> make;  // null: no such device here
};
std::vector<HarnessChoice> host_harnesses();  // every host instruction set of this machine
std::vector<HarnessChoice> all_harnesses();   // those of this test program (choices.cpp)
std::string choice_name(const testing::TestParamInfo<HarnessChoice>& info);
std::ostream& operator<<(std::ostream& out, const HarnessChoice& choice);

// Values rounded to `dtype` (float32 or bfloat16).
std::vector<float> random_values(size_t count, DType dtype, uint32_t seed, float scale = 1.0f);
float round_to(float value, DType dtype);

// A matrix on the device, its rows `extra` elements longer than `cols`; the extra stays poisoned.
Matrix put_matrix(Harness& harness, const std::vector<float>& values, int64_t rows, int64_t cols,
                  DType dtype, int64_t extra = 0);
Matrix fresh_matrix(Harness& harness, int64_t rows, int64_t cols, DType dtype, int64_t extra = 0);
// The first `cols` columns of each row; fails the test if the elements past them changed.
std::vector<float> get_matrix(Harness& harness, const Matrix& matrix, int64_t rows, int64_t cols);

// |actual - expected| <= absolute + (half a unit of bfloat16, if that is the type) per element.
void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                  const std::vector<double>& tolerance, DType dtype);
// The same bits, NaN included.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b);

// The same bits where the device promises them for different launch shapes, else close.
void expect_same_across_keys(const Harness& harness, const std::vector<float>& a,
                             const std::vector<float>& b);

int32_t* put_int(Harness& harness, int32_t value);
// A weight [n, k] in the device's layout.
Weight put_weight(Harness& harness, const std::vector<float>& values, int64_t n, int64_t k,
                  DType dtype);

class OpsTest : public testing::TestWithParam<HarnessChoice> {
 protected:
  void SetUp() override {
    harness_ = GetParam().make();
    if (harness_ == nullptr) GTEST_SKIP() << "this machine has no such device";
  }
  Harness& harness() { return *harness_; }
  const KernelTable& table() { return harness_->table(); }
  StreamRef stream() { return harness_->stream(); }

 private:
  std::unique_ptr<Harness> harness_;
};

inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kBFloat16};

}  // namespace refrain::kernels
