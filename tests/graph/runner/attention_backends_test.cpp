// CG-3 … CG-5: what an attention implementation supports decides the mode in force.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"
#include "worker/dispatch/attention_names.h"

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

TEST(AttentionBackends, BatchInvariantExcludesThoseThatSplitARowsKeys) {
  SessionOptions options;
  options.config.attention_backend = options.device == "host" ? "host_varlen" : "cuda_decode";
  started(options);
  options.config.batch_invariant = true;
  try {
    started(options);
    FAIL() << "it was taken";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("attention_backend"), HasSubstr("batch_invariant")));
  }
}

// Of a model that all of them take; logits of a prompt and of decodes, in graphs where they may be.
TEST(AttentionBackends, ABackendThatPlansAgreesWithOneThatDoesNot) {
  TinyModelShape shape;
  shape.head_dim = 64;
  shape.bfloat16 = true;
  const TinyModel of(shape);
  const bool host = SessionOptions{}.device == "host";
  const auto logits = [&of](const char* backend) {
    SessionOptions options = with_mode("FULL_AND_PIECEWISE");
    options.config.dtype = "bfloat16";
    options.config.max_model_len = 400;
    options.config.max_num_batched_tokens = 400;
    options.num_blocks = 400;
    options.config.attention_backend = backend;
    const auto session = started(options, of);
    EXPECT_EQ(session->ready.cudagraph_mode, "FULL_AND_PIECEWISE");
    std::vector<float> all;
    const auto add = [&](const std::vector<Row>& rows, ipc::RuntimeMode mode) {
      EXPECT_EQ(session->run(rows).mode, mode);
      const std::vector<float> of_step = session->runner().read_logits();
      all.insert(all.end(), of_step.begin(), of_step.end());
    };
    add({{0, prompt(300, 1), 0}, {1, prompt(9, 2), 0}, {2, prompt(70, 3), 0}},
        ipc::RuntimeMode::kNone);
    for (int i = 0; i < 4; ++i)
      add({{0, {5 + i}, 300 + i}, {1, {7 + i}, 9 + i}, {2, {9 + i}, 70 + i}},
          ipc::RuntimeMode::kFull);
    return all;
  };
  const auto plain = logits(host ? "host" : "cuda");
  double largest = 0;
  for (const float value : plain) largest = std::max(largest, std::abs(double{value}));
  for (const char* backend : host ? std::vector{"host_varlen", "host_single_token"}
                                  : std::vector{"cuda_decode", "FLASHINFER"}) {
    const auto planned = logits(backend);
    ASSERT_EQ(planned.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i)
      ASSERT_NEAR(planned[i], plain[i], 0.05 * largest) << backend << ", logit " << i;
  }
}

TEST(AttentionBackends, FlashinferSaysWhichModelsItTakes) {
  if (SessionOptions{}.device == "host") GTEST_SKIP() << "a backend of CUDA";
  SessionOptions options;
  options.config.attention_backend = "flashinfer";
  try {
    started(options);
    FAIL() << "heads of 16 in float32 were taken";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("FLASHINFER takes bfloat16 and heads of 64 or 128"));
  }
}

constexpr const char* kHostName = "host (scalar, 1 thread)";

TEST(AttentionBackends, UnknownNameListsThoseOfTheDevice) {
  const auto backend = worker::find_attention_name("flash", DeviceKind::kHost, kHostName);
  ASSERT_FALSE(backend.has_value());
  EXPECT_EQ(backend.error().field, "attention_backend");
  EXPECT_THAT(backend.error().message, AllOf(HasSubstr("auto"), HasSubstr("host_varlen")));
}

TEST(AttentionBackends, NamesOfPeersAreTakenWhereTheyMeanTheSameAndElseRefusedWithAReason) {
  const auto backend = worker::find_attention_name("CPU_ATTN", DeviceKind::kHost, kHostName);
  ASSERT_TRUE(backend.has_value());
  EXPECT_STREQ((*backend)->name, "host");
  const std::pair<const char*, const char*> refused[] = {
      {"FLASH_ATTN", "library's kernels"}, {"TRITON_ATTN", "library's kernels"},
      {"TORCH_SDPA", "library's kernels"}, {"fa3", "library's kernels"},
      {"FLASHMLA", "latent attention"},    {"ROCM_ATTN", "not served"}};
  for (const auto& [name, why] : refused) {
    const auto found = worker::find_attention_name(name, DeviceKind::kHost, kHostName);
    ASSERT_FALSE(found.has_value()) << name;
    EXPECT_THAT(found.error().message,
                AllOf(HasSubstr(name), HasSubstr(why), HasSubstr("host_varlen")));
    const Status checked = worker::check_attention_backend(name, "cuda");
    ASSERT_FALSE(checked.has_value()) << name;
    EXPECT_THAT(checked.error().message, AllOf(HasSubstr(why), HasSubstr("cuda_decode")));
  }
}

TEST(AttentionBackends, AStateGroupMayHaveItsOwn) {
  using worker::backend_of_group;
  EXPECT_EQ(backend_of_group("auto", "full_attention"), "auto");
  EXPECT_EQ(backend_of_group("host,sliding_attention=host_eager", "sliding_attention"),
            "host_eager");
  EXPECT_EQ(backend_of_group("sliding_attention=host_eager,host", "full_attention"), "host");
  EXPECT_EQ(backend_of_group("sliding_attention=host_eager", "full_attention"), "auto");
  EXPECT_TRUE(worker::check_attention_backend("host,a=host_varlen", "host").has_value());
  EXPECT_FALSE(worker::check_attention_backend("host,a=no", "host").has_value());
  EXPECT_FALSE(worker::check_attention_backend("", "host").has_value());
}

}  // namespace
}  // namespace refrain::tests
