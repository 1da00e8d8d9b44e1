// Nothing is chosen or loaded on the request path: what a device chooses by the rows of a linear is
// chosen in warm-ups, whatever steps come later, those without a graph too.

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "tests/graph/runner/late_device.h"
#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

// The host's kernels, as if they chose by ranges of two rows: which were launched since cleared.
class LinearSpy {
 public:
  using Shape = std::tuple<int64_t, int64_t, int32_t>;  // n, k, the most rows of the range

  static std::unique_ptr<worker::Device> around(std::unique_ptr<worker::Device> host) {
    kernels::KernelTable table = host->kernels();
    inner = table.linear;
    table.planned_rows = [](int32_t rows) { return (rows + 1) / 2 * 2; };
    table.linear = [](kernels::StreamRef stream, const kernels::LinearArgs& args) {
      seen.insert({args.weight.n, args.weight.k, (args.rows.padded + 1) / 2 * 2});
      inner(stream, args);
    };
    return make_late_device_with(std::move(host), table);
  }
  inline static kernels::Kernel<kernels::LinearArgs> inner;
  inline static std::set<Shape> seen;
};

class WarmUp : public testing::Test {
 protected:
  void SetUp() override {
    if (SessionOptions{}.device != "host") GTEST_SKIP() << "the host's kernels say what they take";
    LinearSpy::seen.clear();
  }
  static std::unique_ptr<Session> start(const std::string& mode, std::vector<int32_t> sizes) {
    SessionOptions options = with_mode(mode);
    options.wrap_device = LinearSpy::around;
    if (!sizes.empty()) options.config.cudagraph_capture_sizes = std::move(sizes);
    return started(options);
  }
  // Of up to six requests, each of a prompt of `tokens`.
  static std::vector<Row> prompts(int32_t reqs, int32_t tokens) {
    std::vector<Row> rows;
    for (int32_t slot = 0; slot < reqs; ++slot) rows.push_back({slot, prompt(tokens, slot), 0});
    return rows;
  }
};

TEST_F(WarmUp, CG21BringsTheLinearsOfEveryStep) {
  for (const std::string mode : {"FULL_AND_PIECEWISE", "PIECEWISE", "NONE"}) {
    LinearSpy::seen.clear();
    const auto session = start(mode, mode == "NONE" ? std::vector<int32_t>{} : std::vector{16});
    const auto brought = LinearSpy::seen;
    for (int32_t reqs = 1; reqs <= 6; ++reqs) {
      for (const int32_t tokens : {1, 2, 5}) {
        session->run(prompts(reqs, tokens));
        for (const auto& [n, k, rows] : LinearSpy::seen)
          EXPECT_TRUE(brought.contains({n, k, rows}))
              << mode << ": " << reqs << " prompts of " << tokens << " tokens run a linear [" << n
              << ", " << k << "] of up to " << rows << " rows";
      }
    }
  }
}

// The last layer's MLP and the logits, whose rows are requests.
TEST_F(WarmUp, CG21PiecewiseLaunchesWhatIsOfRequestsForAsFewAsAWarmUpBrought) {
  const auto session = start("PIECEWISE", {16});
  for (const auto& [reqs, of_requests] : {std::pair{1, 2}, {2, 2}, {3, 4}, {4, 4}}) {
    LinearSpy::seen.clear();
    EXPECT_EQ(session->run(prompts(reqs, 16 / reqs)).key_tokens, 16);
    int32_t fewest = 16;
    for (const auto& [n, k, rows] : LinearSpy::seen) fewest = std::min(fewest, rows);
    EXPECT_EQ(fewest, of_requests) << reqs << " requests";
  }
}

}  // namespace
}  // namespace refrain::tests
