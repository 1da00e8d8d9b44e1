// CG-37: a count that a kernel leaves behind is found after its step, and its owner is named.
#include "worker/runner/counter_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CounterCheck, CG37ACountThatIsLeftNamesItsOwnerAndStep) {
  auto device = worker::create_device("host", {1, "", 0, false}, {0, 1, 0});
  ASSERT_TRUE(device);
  const auto stream = (*device)->create_stream();
  std::vector<uint32_t> attention(8), sample(4);
  worker::CounterCheck check(**device, {{"attention", attention.data(), attention.size()},
                                        {"sample", sample.data(), sample.size()}});
  check.copy(*stream, 0);
  sample[3] = 2;
  check.copy(*stream, 1);
  stream->synchronize();
  check.check(6, 0);
  try {
    check.check(7, 1);
    FAIL() << "a count of 2 was not noticed";
  } catch (const worker::DeviceError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("step 7"), HasSubstr("of sample left"), HasSubstr("count 3 at 2")));
  }
}

}  // namespace
}  // namespace refrain::tests
