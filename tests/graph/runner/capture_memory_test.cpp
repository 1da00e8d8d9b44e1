// CG-25: captures that find too little memory, in a warm-up or while they record.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/late_device.h"
#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// CG-25: a memory limit that ends a few bytes into the captures.
TEST(Capture, CG25OutOfMemoryDropsWholeKeysAndSaysWhatWasMissing) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "graphs this small take no CUDA memory";
  const SessionOptions plain = with_mode("FULL_AND_PIECEWISE");
  size_t used = 0, graphs = 0;
  {
    const auto session = started(plain);
    const auto memory = session->device().memory();
    for (size_t bytes : memory.by_tag) used += bytes;
    graphs = memory.by_tag[static_cast<int>(worker::MemoryTag::kGraphs)];
  }
  SessionOptions tight = plain;
  // Room for half of the graphs. The KV budget must not see less memory than it needs.
  tight.config.num_gpu_blocks_override = tight.num_blocks;
  tight.memory_limit = used - graphs / 2;
  std::unique_ptr<Session> session;
  try {
    session = started(tight);
  } catch (const FatalError& error) {
    FAIL() << error.what();
  }
  EXPECT_GT(session->counters().num_captures_dropped, 0);
  EXPECT_LT(session->ready.manifest.size(), 10u);
  ASSERT_FALSE(session->ready.manifest.empty());
  EXPECT_THAT(session->ready.warnings,
              Contains(AllOf(HasSubstr("out of memory"), HasSubstr("bytes were missing"))));
  // What is in the table is whole, and what is not falls back to NONE with the same result.
  const auto reference = started(with_mode("NONE"));
  for (int tokens = 1; tokens <= 16; ++tokens) {
    const std::vector<Row> rows = {{0, prompt(tokens, 1), 0}};
    EXPECT_EQ(session->run(rows).tokens, reference->run(rows).tokens);
  }
  for (const ipc::ManifestEntry& entry : session->ready.manifest) {
    EXPECT_EQ(entry.pieces, entry.mode == "FULL" ? 1 : 3 * kLayers + 1);
  }
}

// CG-25: a key whose kernels find no memory when its warm-up loads them is lost, and no other.
TEST(Capture, CG25OutOfMemoryInAWarmUpDropsTheKeyAndServingGoesOn) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a launch of the host is made to fail";
  SessionOptions options = with_mode("FULL_DECODE_ONLY");
  int warm_ups = 0, sampled = 0;
  options.wrap_device = [&](std::unique_ptr<worker::Device> host) {
    return make_late_device_with(std::move(host), [&](std::string_view name) {
      if (name == "prepare_inputs") ++warm_ups;
      if (name == "sample") ++sampled;
      if (name == "rms_norm" && warm_ups == 2) throw worker::OutOfMemory("no room for code", 4711);
    });
  };
  std::unique_ptr<Session> session;
  try {
    session = started(options);
  } catch (const std::exception& error) {
    FAIL() << error.what();
  }
  EXPECT_EQ(warm_ups, sampled) << "what follows is launched: other ranks may be in its exchanges";
  EXPECT_EQ(session->counters().num_captures_dropped, 1);
  std::vector<int32_t> sizes;
  for (const ipc::ManifestEntry& entry : session->ready.manifest) sizes.push_back(entry.num_tokens);
  EXPECT_THAT(sizes, ElementsAre(6, 2, 1));
  EXPECT_THAT(session->ready.warnings,
              Contains(AllOf(HasSubstr("out of memory while capturing FULL 4"),
                             HasSubstr("4711 bytes were missing"))));
  const auto reference = started(with_mode("NONE"));
  for (int tokens = 1; tokens <= 16; ++tokens) {
    const std::vector<Row> rows = {{0, prompt(tokens, 1), 0}};
    EXPECT_EQ(session->run(rows).tokens, reference->run(rows).tokens);
  }
}

}  // namespace
}  // namespace refrain::tests
