// CG-27, CG-29: debug mode names what moved since the capture; poison is where it should be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Debug, CG29MovedInputIsNamed) {
  SessionOptions options = with_mode("FULL");
  options.config.debug_cudagraph = true;
  const auto session = started(options);
  session->run({{0, prompt(4, 0), 0}});  // nothing moved
  auto& context = session->runner().hosted().context;
  const auto& program = session->runner().hosted().program;
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (program.values[i].name != "kv_cache.1") continue;
    const auto id = static_cast<worker::ValueId>(i);
    context.addresses[i].fill(static_cast<std::byte*>(context.address(id)) + 256);
  }
  try {
    session->run({{0, {kTokenOnDevice}, 4}});
    FAIL() << "the moved cache was not noticed";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rope_kv_write"), HasSubstr("cache"), HasSubstr("kv_cache.1")));
  }
}

TEST(Debug, CG29MovedStepBufferIsNamed) {
  SessionOptions options = with_mode("PIECEWISE");
  options.config.debug_cudagraph = true;
  const auto session = started(options);
  auto& hosted = session->runner().hosted();
  const worker::ValueId sampled = worker::sample_op(hosted.program).tokens;
  void*& odd = hosted.context.addresses[static_cast<size_t>(sampled)][1];  // of odd turns
  odd = static_cast<std::byte*>(odd) + 64;
  try {
    session->run({{0, prompt(4, 0), 0}});
    FAIL() << "the moved output was not noticed";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("sample"), HasSubstr("argument tokens (sampled)")));
  }
}

// Whatever the ops name: inputs, states, outputs, scratch memory, weights, activations.
TEST(Debug, CG29AnyValueThatMovesIsNamed) {
  const auto session = started(with_mode("FULL"));
  worker::HostedProgram& hosted = session->runner().hosted();
  worker::OpContext& context = hosted.context;
  const auto captured = worker::collect_addresses(context, hosted.all_ops());
  EXPECT_EQ(worker::describe_moved(hosted.program, captured, captured), "");
  for (size_t id = 0; id < context.addresses.size(); ++id) {
    for (void*& address : context.addresses[id]) {
      void* const place = address;
      const std::string& name = hosted.program.values[id].name;
      ASSERT_NE(place, nullptr) << name;
      address = static_cast<std::byte*>(place) + 1;
      const bool by_turn = hosted.program.values[id].storage == worker::Storage::kPinned;
      const bool used = by_turn || &address == context.addresses[id].data();
      const std::string moved = worker::describe_moved(
          hosted.program, captured, worker::collect_addresses(context, hosted.all_ops()));
      EXPECT_THAT(moved, used ? HasSubstr("(" + name + ")") : testing::Matcher<std::string>(""));
      address = place;
    }
  }
}

// Padded rows of the values of a step, zero before it, hold NaN after it, wherever nothing was
// written over them.
TEST(Debug, CG27PoisonIsReal) {
  const auto nans_of_padding = [](bool poison) {
    SessionOptions options = with_mode("FULL");
    options.poison_padding = poison;
    const auto session = started(options);
    const auto& hosted = session->runner().hosted();
    const auto for_each_value = [&](auto f) {
      for (size_t id = 0; id < hosted.program.values.size(); ++id) {
        const worker::Value& value = hosted.program.values[id];
        auto* data = static_cast<float*>(hosted.context.addresses[id][0]);
        if (value.kind == worker::ValueKind::kActivation && value.dtype == DType::kFloat32 &&
            value.rows.extent != worker::kNoExtent && data != nullptr)
          f(data, static_cast<size_t>(value.cols));
      }
    };
    const auto stream = session->device().create_stream();
    const worker::Filler zeros(session->device(), 0);
    for_each_value(
        [&](float* data, size_t cols) { zeros.fill(*stream, data, 4 * cols * sizeof(float)); });
    stream->synchronize();
    session->run({{0, prompt(3, 0), 0}});  // FULL 4: one row live of four
    int64_t nans = 0;
    for_each_value([&](float* data, size_t cols) {
      const std::vector<float> padding = session->read(data + cols, 3 * cols);
      nans += std::ranges::count_if(padding, [](float x) { return std::isnan(x); });
    });
    return nans;
  };
  EXPECT_EQ(nans_of_padding(false), 0);
  EXPECT_GT(nans_of_padding(true), 0);
}

}  // namespace
}  // namespace refrain::tests
