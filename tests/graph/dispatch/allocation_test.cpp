// CG-16: dispatch allocates nothing.

#include <gtest/gtest.h>

#include "tests/graph/allocation_count.inc"
#include "worker/dispatch/dispatcher.h"

namespace refrain::worker {
namespace {

TEST(Dispatcher, CG16AllocatesNothing) {
  CudagraphOptions options;
  CudagraphDispatcher dispatcher(*resolve_cudagraph_config(options, {}, true));
  dispatcher.set_captured();
  const int64_t before = tests::allocations_of_this_thread();
  int64_t replays = 0;
  for (int32_t tokens = 0; tokens < 600; ++tokens) {
    for (bool uniform : {false, true}) {
      const BatchShape batch{tokens, uniform ? tokens : tokens / 2, uniform};
      replays += dispatcher.dispatch(batch).mode != RuntimeMode::kNone ? 1 : 0;
    }
  }
  EXPECT_EQ(tests::allocations_of_this_thread(), before);
  EXPECT_EQ(replays, 2 * 512);
  const auto counted = std::make_unique<int>(1);  // the count itself works
  EXPECT_EQ(tests::allocations_of_this_thread(), before + 1);
}

}  // namespace
}  // namespace refrain::worker
