// CG-3 … CG-6: what the attention backends of a model's state groups support decides the mode in
// force, and the tokens are the same whatever they are. On CUDA the same table with its backends
// (REFRAIN_TEST_DEVICE=cuda).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/states/hybrid_requests.h"

namespace refrain::tests {
namespace {

struct Downgrade {
  const char* configured;
  const char* host;  // --attention-backend there
  const char* cuda;  // and there; null: none has that support
  const char* in_force;
};

constexpr const char* kVarlen = "host_varlen";
constexpr const char* kSingle = "host_single_token";
constexpr const char* kFullVarlen = "full_attention=host_varlen";
constexpr const char* kSlidingSingle =
    "full_attention=host_varlen,sliding_attention=host_single_token";
constexpr const char* kOneEager = "host_varlen,sliding_attention=host_eager";
constexpr const char* kCudaFull = "full_attention=cuda_decode";
constexpr const char* kCudaBoth = "cuda_decode";

constexpr Downgrade kTable[] = {
    {"NONE", kVarlen, kCudaBoth, "NONE"},
    {"PIECEWISE", kVarlen, kCudaBoth, "PIECEWISE"},
    {"FULL", "host", "cuda", "FULL"},
    {"FULL", kVarlen, kCudaBoth, "FULL_AND_PIECEWISE"},
    {"FULL", kFullVarlen, kCudaFull, "FULL_AND_PIECEWISE"},
    {"FULL", kSlidingSingle, nullptr, "FULL_AND_PIECEWISE"},
    {"FULL", kOneEager, nullptr, "PIECEWISE"},
    {"FULL_DECODE_ONLY", kSingle, kCudaBoth, "FULL_DECODE_ONLY"},
    {"FULL_DECODE_ONLY", kOneEager, nullptr, "PIECEWISE"},
    {"FULL_AND_PIECEWISE", kVarlen, kCudaBoth, "FULL_AND_PIECEWISE"},
    {"FULL_AND_PIECEWISE", kSlidingSingle, nullptr, "FULL_AND_PIECEWISE"},
    {"FULL_AND_PIECEWISE", kOneEager, nullptr, "PIECEWISE"},
};

TEST(BackendsServed, CG3ToCG6ModesInForceFollowFromTheBackendsOfAllGroups) {
  const HybridModel model;
  const Answers expected = answers_of(model);
  for (const Downgrade& row : kTable) {
    ServedOptions options;
    const bool host = options.device == "host";
    if (!host && row.cuda == nullptr) continue;
    SCOPED_TRACE(testing::Message() << row.configured << " " << (host ? row.host : row.cuda));
    options.build = model.build();
    options.config.cudagraph_mode = row.configured;
    options.config.attention_backend = host ? row.host : row.cuda;
    options.config.audit = true;
    options.audit_rate = 0.2;
    options.poison = true;
    Served served(model.directory(), options);
    EXPECT_EQ(served.ready.cudagraph_mode, row.in_force);
    EXPECT_EQ(serve_all(served), expected);
    EXPECT_GT(served.audited, 0);
    const std::string decodes =
        std::string(row.in_force).starts_with("FULL") ? "FULL" : row.in_force;
    EXPECT_GT(served.modes[decodes], 0);
  }
}

// With drafts the host does not know how long rows are: their plan says so, and the device does.
TEST(BackendsServed, CG5DraftsTakeABackendThatPlansBelowTheirLength) {
  const HybridModel model;
  const Answers expected = answers_of(model);
  const bool host = ServedOptions().device == "host";
  const std::pair<const char*, const char*> cases[] = {
      {host ? "host_varlen" : "cuda_decode", "FULL_AND_PIECEWISE"},
      {host ? "host_single_token" : nullptr, "PIECEWISE"}};
  for (const auto& [backend, in_force] : cases) {
    if (backend == nullptr) continue;
    SCOPED_TRACE(backend);
    ServedOptions options;
    options.build = model.build();
    options.config.num_speculative_tokens = 2;
    options.config.prompt_lookup_max = 3;
    options.config.attention_backend = backend;
    Served served(model.directory(), options);
    EXPECT_EQ(served.ready.cudagraph_mode, in_force);
    EXPECT_EQ(serve_all(served), expected);
  }
}

}  // namespace
}  // namespace refrain::tests
