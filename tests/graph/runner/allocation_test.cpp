// After warm-up a step allocates nothing but the event that the stream hands out.

#include <gtest/gtest.h>

#include "tests/graph/allocation_count.inc"
#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

TEST(Steps, AllocateNothingButTheEvent) {
  const TinyModel model;
  for (const char* mode : {"NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"}) {
    SessionOptions options;
    options.config.cudagraph_mode = mode;
    Session session(model.directory(), options);
    session.start();
    session.run({{0, prompt(5, 0), 0}, {1, prompt(4, 1), 0}});
    for (int32_t step = 0; step < 4; ++step) {
      const ipc::Step decode =
          session.make_step({{0, {kTokenOnDevice}, 5 + step}, {1, {kTokenOnDevice}, 4 + step}});
      const int64_t before = allocations_of_this_thread();
      session.runner().submit(decode);
      const int64_t allocated = allocations_of_this_thread() - before;
      // Eager matrix products on CUDA choose their algorithm in the first step of a shape.
      if (options.device == "host" || step > 0) {
        EXPECT_LE(allocated, 1) << mode << " step " << step;
      }
      session.runner().wait();
    }
  }
}

}  // namespace
}  // namespace refrain::tests
