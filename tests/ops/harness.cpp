#include "tests/ops/harness.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "kernels/host/launcher.h"
#include "kernels/host/pack.h"

namespace refrain::kernels {
namespace {

// Runs each launch on real threads, which all end before the next launch.
class ThreadLauncher : public HostLauncher {
 public:
  explicit ThreadLauncher(int threads) : scratch_(threads) {
    for (auto& memory : scratch_) memory.assign(kTeamScratchBytes + 64, std::byte{0xff});
  }

  void launch(HostFunction function, const void* args, size_t, const char*, bool single) override {
    const int size = single ? 1 : static_cast<int>(scratch_.size());
    std::vector<std::thread> others;
    for (int rank = 1; rank < size; ++rank) {
      others.emplace_back([=, this] { function(args, team(rank, size)); });
    }
    function(args, team(0, size));
    for (auto& thread : others) thread.join();
  }

 private:
  Team team(int rank, int size) {
    auto at = reinterpret_cast<uintptr_t>(scratch_[rank].data());
    at = (at + 63) / 64 * 64;
    return {rank, size, reinterpret_cast<std::byte*>(at), kTeamScratchBytes};
  }
  std::vector<std::vector<std::byte>> scratch_;
};

class HostHarness : public Harness {
 public:
  HostHarness(HostIsa isa, int threads) : table_(host_kernel_table(isa)), launcher_(threads) {}

  const KernelTable& table() const override { return table_; }
  StreamRef stream() override { return {static_cast<HostLauncher*>(&launcher_)}; }
  void* allocate(size_t bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    std::memset(memory_.back().get(), 0xff, bytes);
    return memory_.back().get();
  }
  void upload(void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }

 private:
  const KernelTable& table_;
  ThreadLauncher launcher_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

std::unique_ptr<Harness> make_host_harness(HostIsa isa, int threads) {
  return std::make_unique<HostHarness>(isa, threads);
}

std::vector<HarnessChoice> host_harnesses() {
  std::vector<HarnessChoice> choices;
  for (const HostIsa isa :
       {HostIsa::kScalar, HostIsa::kAvx2, HostIsa::kAvx512, HostIsa::kAvx512Bf16}) {
    if (!has_host_isa(isa)) continue;
    choices.push_back(
        {std::string("host_") + to_string(isa), [isa] { return make_host_harness(isa, 3); }});
  }
#ifdef REFRAIN_TSAN  // threads share the work alike, whatever instructions they use
  choices.erase(choices.begin(), choices.end() - 1);
#endif
  return choices;
}

std::string choice_name(const testing::TestParamInfo<HarnessChoice>& info) {
  return info.param.name;
}

std::ostream& operator<<(std::ostream& out, const HarnessChoice& choice) {
  return out << choice.name;
}

float round_to(float value, DType dtype) {
  return dtype == DType::kBFloat16 ? to_float(to_bfloat16(value)) : value;
}

std::vector<float> random_values(size_t count, DType dtype, uint32_t seed, float scale) {
  std::vector<float> values(count);
  uint64_t state = seed;
  for (float& value : values) {  // splitmix64
    state += 0x9e3779b97f4a7c15u;
    uint64_t bits = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    const auto unit = static_cast<float>(bits >> 40) * 0x1.0p-23f - 1.0f;
    value = round_to(unit * scale, dtype);
  }
  return values;
}

Matrix fresh_matrix(Harness& harness, int64_t rows, int64_t cols, DType dtype, int64_t extra) {
  const int64_t stride = cols + extra;
  return {
      harness.allocate(static_cast<size_t>(std::max<int64_t>(1, rows * stride)) * size_of(dtype)),
      dtype, stride};
}

Matrix put_matrix(Harness& harness, const std::vector<float>& values, int64_t rows, int64_t cols,
                  DType dtype, int64_t extra) {
  const Matrix matrix = fresh_matrix(harness, rows, cols, dtype, extra);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * matrix.stride) * size_of(dtype),
                               std::byte{0xff});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float value = values[r * cols + c];
      const BFloat16 narrow = to_bfloat16(value);
      std::byte* at = bytes.data() + (r * matrix.stride + c) * size_of(dtype);
      dtype == DType::kFloat32 ? std::memcpy(at, &value, 4) : std::memcpy(at, &narrow, 2);
    }
  }
  harness.upload(matrix.data, bytes.data(), bytes.size());
  return matrix;
}

std::vector<float> get_matrix(Harness& harness, const Matrix& matrix, int64_t rows, int64_t cols) {
  const size_t size = size_of(matrix.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * matrix.stride) * size);
  harness.download(bytes.data(), matrix.data, bytes.size());
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < matrix.stride; ++c) {
      const std::byte* at = bytes.data() + (r * matrix.stride + c) * size;
      float value;
      BFloat16 narrow;
      std::memcpy(&value, at, size == 4 ? 4 : 2);
      std::memcpy(&narrow, at, 2);
      if (size == 2) value = to_float(narrow);
      if (c < cols) {
        values.push_back(value);
      } else {
        EXPECT_TRUE(std::isnan(value)) << "row " << r << ", column " << c << " was written";
      }
    }
  }
  return values;
}

void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                  const std::vector<double>& tolerance, DType dtype) {
  ASSERT_EQ(actual.size(), expected.size());
  int shown = 0;
  for (size_t i = 0; i < actual.size() && shown < 5; ++i) {
    const double rounding = dtype == DType::kBFloat16 ? std::abs(expected[i]) / 256 : 0;
    const bool close = std::abs(actual[i] - expected[i]) <= tolerance[i] + rounding;
    EXPECT_TRUE(close) << "element " << i << ": " << actual[i] << ", expected " << expected[i];
    if (!close) ++shown;
  }
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << "element " << i << ": " << a[i] << " and " << b[i];
  }
}

void expect_same_across_keys(const Harness& harness, const std::vector<float>& a,
                             const std::vector<float>& b) {
  if (harness.bitwise_across_keys()) return expect_same_bits(a, b);
  const double absolute = 2 * harness.attention_error(DType::kBFloat16);
  const std::vector<double> tolerance(b.size(), absolute);
  expect_close(a, {b.begin(), b.end()}, tolerance, DType::kBFloat16);
}

Weight put_weight(Harness& harness, const std::vector<float>& values, int64_t n, int64_t k,
                  DType dtype) {
  if (harness.weight_layout() == WeightLayout::kRowMajor) {
    return {put_matrix(harness, values, n, k, dtype).data, dtype, WeightLayout::kRowMajor, n, k};
  }
  std::vector<std::byte> packed(tiled16_bytes(n, k, dtype), std::byte{0xff});
  EXPECT_TRUE(pack_tiled16({values.data(), DType::kFloat32, k}, n, k, dtype, packed.data(), 0));
  pad_tiled16(packed.data(), n, k, dtype);
  return {harness.put(packed), dtype, WeightLayout::kTiled16, n, k};
}

int32_t* put_int(Harness& harness, int32_t value) {
  return harness.put(std::vector<int32_t>{value});
}

}  // namespace refrain::kernels
