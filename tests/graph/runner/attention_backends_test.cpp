// CG-3 … CG-5: what an attention implementation supports decides the mode in force.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"
#include "worker/graph/attention_backend.h"

namespace refrain::tests {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

TEST(AttentionBackends, CG3AndCG4BackendsThatSupportLessLowerTheMode) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "names backends of the host device";
  const std::vector<std::tuple<const char*, const char*, const char*>> cases = {
      {"host", "FULL", "FULL"},
      {"host_varlen", "FULL", "FULL_AND_PIECEWISE"},
      {"host_single_token", "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE"},
      {"host_eager", "FULL_AND_PIECEWISE", "PIECEWISE"},
      {"host_eager", "FULL", "PIECEWISE"},
  };
  for (const auto& [backend, configured, in_force] : cases) {
    SessionOptions options = with_mode(configured);
    options.config.attention_backend = backend;
    const auto session = started(options);
    EXPECT_EQ(session->ready.cudagraph_mode, in_force) << backend << " " << configured;
    if (std::string(configured) != in_force) {
      EXPECT_THAT(session->ready.warnings, Contains(HasSubstr(backend)));
    }
  }
}

TEST(AttentionBackends, CG5SpeculativeDecodesNeedUniformBatchSupport) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "names backends of the host device";
  SessionOptions options = with_mode("FULL_DECODE_ONLY");
  options.config.num_speculative_tokens = 2;
  options.config.attention_backend = "host_single_token";
  EXPECT_EQ(started(options)->ready.cudagraph_mode, "PIECEWISE");
  options.config.attention_backend = "host_varlen";
  const auto session = started(options);
  EXPECT_EQ(session->ready.cudagraph_mode, "FULL_DECODE_ONLY");
  EXPECT_EQ(session->ready.uniform_query_len, 3);
  const auto is_key = [](const ipc::ManifestEntry& e) {
    return e.mode == "FULL" && e.num_tokens == 6 && e.num_reqs == 2 && e.uniform;
  };
  EXPECT_THAT(session->ready.manifest, Contains(::testing::Truly(is_key)));
}

TEST(AttentionBackends, UnknownNameListsThoseOfTheDevice) {
  const auto backend = worker::find_attention_backend("flash", "host (scalar, 1 thread)");
  ASSERT_FALSE(backend.has_value());
  EXPECT_EQ(backend.error().field, "attention_backend");
  EXPECT_THAT(backend.error().message, AllOf(HasSubstr("auto"), HasSubstr("host_varlen")));
}

}  // namespace
}  // namespace refrain::tests
