// CG-35: capturer, executables, interpreter and manifest work on keys of any type: here of a
// Program without tokens and requests, whose rows are counted by an extent of its own, and whose
// keys have a static attribute that chooses a lowering.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/config/model/model_config.h"
#include "worker/device/factory/factory.h"
#include "worker/graph/capturer.h"
#include "worker/program/passes/passes.h"
#include "worker/weights/weights.h"

namespace refrain::tests::keys {
namespace {

using namespace worker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ExtentId kPatches = 0;
constexpr int32_t kMost = 16, kCols = 32;

// Padded patches, and whether the result has the input added to it.
struct TowerKey {
  int32_t patches = 0;
  bool residual = false;
  bool operator==(const TowerKey&) const = default;
};
struct TowerBatch {
  int32_t patches = 0;
};
LaunchKey launch_key(const Program& program, const TowerKey& key) {
  EXPECT_EQ(program.extents[kPatches].name, "patches");
  return {{key.patches}, 0};
}
LaunchBatch launch_batch(const TowerBatch& batch) { return {{batch.patches}, 0, false}; }
std::string describe(const TowerKey& key) {
  return fmt::format("{} patches{}", key.patches, key.residual ? ", residual" : "");
}
void enter_into_manifest(const TowerKey& key, ipc::ManifestEntry& entry) {
  entry.mode = (key.residual ? "tower+residual " : "tower ") + entry.mode;
  entry.num_tokens = key.patches;
}

class TowerDispatcher {
 public:
  std::vector<TowerKey> keys(RuntimeMode) const { return all_; }
  void drop(RuntimeMode mode, int32_t id) { dropped.emplace_back(mode, id); }
  void set_captured() { captured = true; }
  // The place of the smallest key that holds the batch.
  int32_t find(int32_t patches, bool residual) const {
    int32_t best = -1;
    for (size_t i = 0; i < all_.size(); ++i)
      if (all_[i].residual == residual && all_[i].patches >= patches)
        best = static_cast<int32_t>(i);
    return best;
  }

  bool captured = false;
  std::vector<std::pair<RuntimeMode, int32_t>> dropped;

 private:
  const std::vector<TowerKey> all_ = {{16, true}, {16, false}, {8, true},
                                      {8, false}, {2, true},   {2, false}};
};
std::string degraded(const TowerDispatcher&) { return "the tower has fewer keys"; }

ValueId weight(Program& program, const char* name, int64_t rows, int64_t cols) {
  Value value{.name = name,
              .kind = ValueKind::kWeight,
              .dtype = DType::kFloat32,
              .rows = Dim::constant(rows),
              .cols = cols,
              .storage = Storage::kDevice};
  value.parts.push_back(
      {.tensor = name, .tensor_rows = rows, .tensor_cols = cols, .row_end = rows, .col_end = cols});
  program.values.push_back(value);
  return static_cast<ValueId>(program.values.size() - 1);
}

Program tower(bool residual) {
  Program program;
  program.name = "tower";
  const auto define = [&](const char* name, ValueKind kind, DType dtype, Dim rows, int64_t cols,
                          Storage storage) {
    program.values.push_back({.name = name,
                              .kind = kind,
                              .dtype = dtype,
                              .rows = rows,
                              .cols = cols,
                              .storage = storage});
    return static_cast<ValueId>(program.values.size() - 1);
  };
  const Dim patches{kPatches};
  const auto activation = [&](const char* name, int64_t cols) {
    return define(name, ValueKind::kActivation, DType::kFloat32, patches, cols, Storage::kArena);
  };
  const ValueId live = define("live_patches", ValueKind::kInput, DType::kInt32, Dim::constant(1), 1,
                              Storage::kPinned);
  const ValueId in =
      define("pixels", ValueKind::kInput, DType::kFloat32, patches, kCols, Storage::kPinned);
  const ValueId out =
      define("embedding", ValueKind::kOutput, DType::kFloat32, patches, kCols, Storage::kPinned);
  const ValueId up = weight(program, "up", 2 * kCols, kCols);
  const ValueId down = weight(program, "down", kCols, kCols);
  const ValueId wide = activation("wide", 2 * kCols), gated = activation("gated", kCols);
  const ValueId last = residual ? activation("last", kCols) : out;
  program.extents = {{"patches", kMost, live}};
  program.ops.emplace_back(LinearOp{.in = in, .weight = up, .bias = kNoValue, .out = wide});
  program.ops.emplace_back(SiluMulOp{.in = wide, .out = gated});
  program.ops.emplace_back(LinearOp{.in = gated, .weight = down, .bias = kNoValue, .out = last});
  if (residual) program.ops.emplace_back(AddOp{.a = in, .b = last, .out = out});
  return program;
}

class Keys : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* kind = std::getenv("REFRAIN_TEST_DEVICE");
    auto device = create_device(kind == nullptr ? "host" : kind, {2, "", 0, false}, {0, 1, 0});
    ASSERT_TRUE(device.has_value());
    device_ = std::move(*device);
    stream_ = device_->create_stream();
    pool_ = std::make_unique<GraphPool>(*device_);
    for (const bool residual : {false, true}) {
      Lowering& lowering = lowerings_[residual];
      lowering.program = tower(residual);
      const Status valid = validate(lowering.program, device_->kernels());
      ASSERT_TRUE(valid.has_value()) << valid.error().message;
      auto pieces = split_program(lowering.program, {"silu_mul"});
      ASSERT_TRUE(pieces.has_value()) << pieces.error().message;
      lowering.pieces = std::move(*pieces);
      lowering.warm_up = {lowering.all_ops()};
      lowering.plan = plan_memory(lowering.program, lowering.program.max_sizes());
      auto loaded = make_dummy_weights(lowering.program, ModelConfig{}, 7, *device_, *stream_, {});
      ASSERT_TRUE(loaded.has_value());
      weights_[residual] = std::move(*loaded);
      pool_->reserve(lowering.plan.bytes);
    }
    pool_->commit();
    pinned_ = device_->allocate_pinned(3 * size_t{kMost} * kCols * sizeof(float));
    auto* at = static_cast<float*>(pinned_->data());
    live_ = reinterpret_cast<int32_t*>(at);
    in_ = at + kMost * kCols;
    out_ = in_ + kMost * kCols;
    for (int i = 0; i < kMost * kCols; ++i) in_[i] = static_cast<float>(i % 37) / 16 - 1;
    for (const bool residual : {false, true}) {
      Lowering& lowering = lowerings_[residual];
      OpContext& context = lowering.context;
      context.program = &lowering.program;
      context.kernels = &device_->kernels();
      context.weights = &weights_[residual];
      context.stream = stream_.get();
      context.stream_ref = stream_->ref();
      std::vector<Addresses> own(lowering.program.values.size());
      own[0].fill(live_);
      own[1].fill(in_);
      own[2].fill(out_);
      const Status bound = bind_values(context, lowering.plan, pool_->arena(), {}, own);
      ASSERT_TRUE(bound.has_value()) << bound.error().message;
    }
  }

  CaptureResult capture(const std::function<bool(bool)>& any_rank_failed = {}) {
    const CaptureJob<TowerKey> job{
        [this](const TowerKey& key) -> const Lowering& { return lowerings_[key.residual]; },
        device_->warmup_runs(),
        false,
        {{kMost - 1, true}}};
    const CaptureHooks<TowerKey> hooks{[this](const TowerKey& key) {
                                         stream_->synchronize();
                                         *live_ = key.patches;
                                       },
                                       any_rank_failed,
                                       {}};
    return capture_all(job, hooks, *pool_, dispatcher_, table_);
  }

  // Of the live patches; on the host the others' rows are as they were (CG-36).
  std::vector<float> result(int32_t patches) {
    stream_->synchronize();
    float* end = out_ + patches * kCols;
    if (device_->kind() == DeviceKind::kHost) {
      EXPECT_TRUE(
          std::all_of(end, out_ + kMost * kCols, [](float value) { return std::isnan(value); }))
          << "behind " << patches << " patches";
    }
    return {out_, end};
  }
  void begin(int32_t patches) {
    *live_ = patches;
    std::memset(out_, 0xff, size_t{kMost} * kCols * sizeof(float));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Weights weights_[2];  // by residual
  Lowering lowerings_[2];
  std::unique_ptr<GraphPool> pool_;
  std::unique_ptr<Buffer> pinned_;
  int32_t* live_ = nullptr;
  float *in_ = nullptr, *out_ = nullptr;
  TowerDispatcher dispatcher_;
  ExecutableTable<TowerKey> table_;  // graphs die first
};

TEST_F(Keys, CG35AProgramsOwnExtentAndAttributeMakeItsKeys) {
  const CaptureResult captured = capture();
  EXPECT_TRUE(dispatcher_.captured);
  EXPECT_THAT(captured.warnings, ElementsAre());
  ASSERT_EQ(captured.manifest.size(), 12u);
  EXPECT_EQ(captured.manifest[0].mode, "tower+residual PIECEWISE");
  EXPECT_EQ(captured.manifest[0].num_tokens, 16);
  EXPECT_NE(captured.manifest[0].digest, captured.manifest[1].digest);
  for (const bool residual : {false, true}) {
    const Lowering& lowering = lowerings_[residual];
    for (int32_t patches = 1; patches <= kMost; ++patches) {
      const TowerBatch batch{patches};
      const LaunchBatch own = launch_batch(batch);
      begin(patches);
      launch_ops(lowering.context, lowering.all_ops(), LaunchKey{{patches}, 0}, &own);
      const std::vector<float> eager = result(patches);
      for (const RuntimeMode mode : {RuntimeMode::kPiecewise, RuntimeMode::kFull}) {
        const auto& executable = table_.at(mode, dispatcher_.find(patches, residual));
        EXPECT_EQ(executable.key.residual, residual);
        EXPECT_GE(executable.key.patches, patches);
        begin(patches);
        run_pieces(lowering.context, executable, executable.key, batch, pool_->counters());
        const std::vector<float> replayed = result(patches);
        ASSERT_EQ(replayed.size(), eager.size());
        for (size_t i = 0; i < eager.size(); ++i)  // on CUDA sizes have kernels of their own
          ASSERT_NEAR(replayed[i], eager[i], device_->kind() == DeviceKind::kHost ? 0 : 1e-4);
      }
    }
  }
}

TEST_F(Keys, CG25AKeyOfAnotherTypeIsDroppedAndNamed) {
  int asked = 0;
  const CaptureResult captured = capture([&](bool failed) { return failed || ++asked == 2; });
  EXPECT_THAT(dispatcher_.dropped, ElementsAre(std::pair(RuntimeMode::kPiecewise, 1)));
  EXPECT_EQ(captured.manifest.size(), 11u);
  ASSERT_EQ(captured.warnings.size(), 1u);
  EXPECT_THAT(captured.warnings[0], HasSubstr("PIECEWISE 16 patches: another rank had too little"));
  EXPECT_THAT(captured.warnings[0], HasSubstr("and the tower has fewer keys"));
}

}  // namespace
}  // namespace refrain::tests::keys
