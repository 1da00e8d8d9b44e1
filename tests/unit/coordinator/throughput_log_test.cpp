#include "runtime/coordinator/throughput_log.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

TEST(ThroughputLine, SaysWhatHappenedInVllmsWords) {
  EngineStats before, now;
  before.prompt_tokens = 100;
  now.prompt_tokens = 300;
  now.cached_prompt_tokens = 50;
  now.generated_tokens = 45;
  now.requests_running = 3;
  now.requests_waiting = 1;
  now.blocks_total = 200;
  now.blocks_free = 150;
  EXPECT_EQ(throughput_line(before, now, 10),
            "Avg prompt throughput: 20.0 tokens/s, Avg generation throughput: 4.5 tokens/s, "
            "Running: 3 reqs, "
            "Waiting: 1 reqs, GPU KV cache usage: 25.0%, Prefix cache hit rate: 25.0%");
}

TEST(ThroughputLine, IsEmptyWithoutLoad) {
  EngineStats stats;
  stats.prompt_tokens = 100;
  EXPECT_EQ(throughput_line(stats, stats, 10), "");
  EngineStats running = stats;
  running.requests_running = 1;
  EXPECT_NE(throughput_line(stats, running, 10), "");
}

}  // namespace
}  // namespace refrain
