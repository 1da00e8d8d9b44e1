#include "runtime/server/metrics.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

TEST(Metrics, StepsWithoutAGraphAreOneSeriesHoweverManyTokensTheyHave) {
  EngineStats stats;
  for (int32_t tokens = 1; tokens <= 1000; ++tokens) {
    GraphUse use;
    use.mode = "NONE";
    use.padded_tokens = tokens;
    use.count = 2;
    stats.graph_uses.push_back(use);
  }
  const std::string text = Metrics("m").render(stats, {});
  const std::string name = "refrain:cudagraph_dispatch_total{";
  const size_t first = text.find(name);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(name, first + 1), std::string::npos) << "a second series";
  const std::string line = text.substr(first, text.find('\n', first) - first);
  EXPECT_TRUE(line.ends_with(" 2000")) << line;
}

}  // namespace
}  // namespace refrain
