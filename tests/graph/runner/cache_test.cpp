// CG-25: the KV cache takes what the captures leave, never the other way round.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"
#include "worker/kv/kv_cache.h"

namespace refrain::tests {
namespace {

using ::testing::HasSubstr;
using worker::MemoryTag;

// Blocks of 32 KiB a layer, as many as the requests of large_cache() can use: two layers of 50 MB,
// of which a GPU gives 2 MiB at a time.
constexpr size_t kBlockBytes = 32 * 1024;
constexpr int64_t kBlocks = 24 * 64 + 1;

const TinyModel& wide_model() {
  static const TinyModel tiny([] {
    TinyModelShape shape;
    shape.heads = shape.kv_heads = 8;
    shape.head_dim = 64;
    return shape;
  }());
  return tiny;
}

SessionOptions large_cache() {
  SessionOptions options;
  options.config.cudagraph_mode = "FULL_AND_PIECEWISE";
  options.config.max_num_seqs = 24;
  options.config.max_model_len = 512;
  options.num_blocks = kBlocks;
  return options;
}

size_t of(const worker::MemoryAccount& memory, MemoryTag tag) {
  return memory.by_tag[static_cast<int>(tag)];
}

TEST(KvCache, HasItsMemoryAfterTheCapturesAndIsCountedThen) {
  Session session(wide_model().directory(), large_cache());
  ASSERT_TRUE(session.runner().load().has_value());
  ASSERT_TRUE(session.runner().init_cache({kBlocks}).has_value());
  EXPECT_EQ(session.runner().kv_cache().num_blocks().at(0), 1);  // the reserved one
  EXPECT_LE(of(session.device().memory(), MemoryTag::kKvCache), size_t{4} << 20);
  const std::vector<void*> addresses = session.runner().kv_cache().addresses();
  ASSERT_TRUE(session.runner().capture().has_value());
  EXPECT_EQ(session.runner().kv_cache().num_blocks().at(0), 1);
  const auto ready = session.runner().back_cache();
  ASSERT_TRUE(ready.has_value()) << ready.error().message;
  EXPECT_EQ(ready->num_blocks.at(0), kBlocks);
  EXPECT_EQ(session.runner().kv_cache().addresses(), addresses);
  EXPECT_GE(of(session.device().memory(), MemoryTag::kKvCache), size_t{kBlocks} * 2 * kBlockBytes);
}

// Graphs recorded over addresses without memory give the tokens of a cache that always had some.
TEST(KvCache, CG25LittleMemoryMakesTheCacheSmallerAndKeepsEveryKey) {
  size_t used = 0, cache = 0;
  const auto plain = started(large_cache(), wide_model());
  for (const size_t bytes : plain->device().memory().by_tag) used += bytes;
  cache = of(plain->device().memory(), MemoryTag::kKvCache);
  SessionOptions tight = large_cache();
  tight.memory_limit = used - cache / 2;
  const auto session = started(tight, wide_model());
  EXPECT_EQ(session->ready.manifest.size(), plain->ready.manifest.size());
  EXPECT_LT(session->ready.num_blocks.at(0), kBlocks * 6 / 10);
  EXPECT_GT(session->ready.num_blocks.at(0), kBlocks * 4 / 10);
  for (int tokens : {1, 7, 16, 30}) {
    const std::vector<Row> rows = {{0, prompt(tokens, 1), 0}};
    EXPECT_EQ(session->run(rows).tokens, plain->run(rows).tokens);
    const std::vector<Row> next = {{0, {kTokenOnDevice}, tokens}};
    EXPECT_EQ(session->run(next).tokens, plain->run(next).tokens);
  }
}

TEST(KvCache, SizeThatWasAskedForIsAnErrorWhenItDoesNotFit) {
  SessionOptions options = large_cache();
  options.config.num_gpu_blocks_override = kBlocks;
  options.memory_limit = size_t{90} << 20;
  try {
    started(options, wide_model());
    FAIL() << "100 MB of cache fit into 90 MiB";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1537 KV blocks do not fit"));
    EXPECT_THAT(error.what(), HasSubstr("bytes are missing"));
  }
}

// Somebody else's memory: all but a few MB of the GPU is taken when the captures begin.
TEST(KvCache, CG25CapturesOnAFullGpuLoseWholeKeysAndServingGoesOn) {
  if (SessionOptions{}.device == "host") GTEST_SKIP() << "fills a GPU";
  SessionOptions options;
  options.config.cudagraph_mode = "FULL_AND_PIECEWISE";
  options.config.max_num_seqs = 64;
  options.config.max_num_batched_tokens = 512;
  options.config.cudagraph_capture_sizes.clear();
  for (int size = 1; size <= 400; size += 1) options.config.cudagraph_capture_sizes.push_back(size);
  options.config.num_gpu_blocks_override = options.num_blocks = 1024;
  TinyModelShape deep;
  deep.layers = 16;
  const TinyModel deep_model(deep);
  Session reference(deep_model.directory(), options);  // also loads every kernel
  reference.start();
  Session session(deep_model.directory(), options);
  ASSERT_TRUE(session.runner().load().has_value());
  ASSERT_TRUE(session.runner().init_cache({options.num_blocks}).has_value());
  constexpr size_t kLeft = size_t{24} << 20;
  std::vector<std::unique_ptr<worker::Buffer>> others;
  for (size_t step = size_t{1} << 34; step >= (size_t{1} << 21); step /= 2) {
    while (session.device().memory().free > step + kLeft) {
      others.push_back(session.device().allocate(step, MemoryTag::kOther));
    }
  }
  ASSERT_TRUE(session.runner().capture().has_value());
  others.clear();
  const auto ready = session.runner().back_cache();
  ASSERT_TRUE(ready.has_value()) << ready.error().message;
  EXPECT_GT(session.counters().num_captures_dropped, 0);
  EXPECT_LT(ready->manifest.size(), reference.ready.manifest.size());
  ASSERT_FALSE(ready->manifest.empty());
  EXPECT_THAT(ready->warnings, ::testing::Contains(HasSubstr("out of memory while capturing")));
  // Large keys first (CG-21): where there is memory for some, the largest have it.
  EXPECT_EQ(ready->manifest.front().num_tokens, reference.ready.manifest.front().num_tokens);
  for (int tokens : {1, 30, 400}) {
    const std::vector<Row> rows = {{0, prompt(std::min(tokens, 60), 1), 0}};
    EXPECT_EQ(session.run(rows).tokens, reference.run(rows).tokens);
  }
}

}  // namespace
}  // namespace refrain::tests
