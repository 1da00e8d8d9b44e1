// CG-41: a difference planted in a logit, a key, a value, a token or a slot is found and named. The
// graphs hold the host's own kernels; those of the second run are exchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "kernels/host/launcher.h"
#include "tests/graph/runner/audit_case.h"

namespace refrain::tests {
namespace {

using ::testing::HasSubstr;

// What a graph would have written beside its place: a kernel of the audit changes the keys or the
// values that token 1 has in the first layer, before it takes them.
const kernels::KernelTable* real_kernels = nullptr;
int calls_before = 0;  // of the one that spoils: the layer's parts come one after the other

void spoil_row(const kernels::KvRowsArgs& args, const kernels::Team& team) {
  if (team.rank != 0) return;
  const int64_t slot = args.kv_slots[1];
  args.cache[slot / args.block_size * args.block_bytes +
             slot % args.block_size * args.unit_bytes] ^= std::byte{0x40};
}

void spoil_then_copy(kernels::StreamRef stream, const kernels::KvRowsArgs& args) {
  if (calls_before-- == 0) kernels::launch<&spoil_row>(stream, args, "spoil");
  real_kernels->kv_rows(stream, args);
}

TEST(Audit, CG41FindsAChangedRowOfTheCache) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a kernel of the host";
  for (const bool values : {false, true}) {
    const auto session = started(audited("FULL"));
    worker::OpContext& context = session->runner().hosted().context;
    real_kernels = context.kernels;
    calls_before = values ? 1 : 0;
    kernels::KernelTable planted = *context.kernels;
    planted.kv_rows = &spoil_then_copy;
    context.kernels = &planted;
    const ipc::AuditResult found = run_audited(*session, {{0, prompt(6, 1), 0}}).audit;
    EXPECT_EQ(found.differences, 1) << found.first;
    EXPECT_EQ(found.worst_logit, 0);
    EXPECT_GT(found.worst_kv, 0);
    EXPECT_THAT(found.first, HasSubstr(fmt::format("layer 0: the {} of token 1 differ",
                                                   values ? "values" : "keys")));
  }
}

// The second run's logits of row 1: one token's is changed before they are sampled.
struct SpoilLogit {
  float* logits;
  float value;
};

void spoil_logit(const SpoilLogit& args, const kernels::Team& team) {
  if (team.rank == 0) *args.logits = args.value;
}

float spoilt_logit = 0;
constexpr int32_t kSpoiltToken = 200;

void spoil_then_sample(kernels::StreamRef stream, const kernels::SampleArgs& args) {
  const int64_t shard = kSpoiltToken / args.shard_cols, col = kSpoiltToken % args.shard_cols;
  float* row = const_cast<float*>(args.logits) + shard * args.shard_stride + args.shard_cols;
  kernels::launch<&spoil_logit>(stream, SpoilLogit{row + col, spoilt_logit}, "spoil");
  real_kernels->sample(stream, args);
}

TEST(Audit, CG41FindsALogitThatDiffersAndAGreedyTokenThatIsNotTheBest) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a kernel of the host";
  for (const bool best : {false, true}) {
    const auto session = started(audited("FULL"));
    worker::OpContext& context = session->runner().hosted().context;
    real_kernels = context.kernels;
    spoilt_logit = best ? 1000.0f : -1000.0f;
    kernels::KernelTable planted = *context.kernels;
    planted.sample = &spoil_then_sample;
    context.kernels = &planted;
    const std::vector<Row> rows = {
        {0, prompt(6, 1), 0}, {1, prompt(3, 2), 0}, {2, prompt(2, 3), 0}};
    const ipc::StepResult result = run_audited(*session, rows);
    ASSERT_NE(result.tokens[1], kSpoiltToken);
    EXPECT_EQ(result.audit.differences, best ? 2 : 1) << result.audit.first;
    EXPECT_EQ(result.audit.worst_kv, 0);
    EXPECT_NEAR(result.audit.worst_logit, 1, 0.1);
    EXPECT_THAT(result.audit.first, HasSubstr("the logits of row 1 differ by"));
  }
}

// A logit of the second rank's part of the vocabulary, in the memory of both.
TEST(Audit, CG41FindsALogitThatDiffersInAnotherRanksPart) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a kernel of the host";
  spoilt_logit = -1000;
  std::vector<ipc::AuditResult> found(2);
  const auto run = [&](int rank, const kernels::KernelTable& planted) {
    Session session(model().directory(),
                    audited_rank_of_two(rank, fmt::format("audit-plant-{}", getpid())));
    session.start();
    session.runner().hosted().context.kernels = &planted;
    found[static_cast<size_t>(rank)] =
        run_audited(session, {{0, prompt(1, 1), 0}, {1, prompt(1, 2), 0}}).audit;  // a graph
  };
  const auto host = started(with_mode("NONE"));
  real_kernels = host->runner().hosted().context.kernels;
  kernels::KernelTable planted = *real_kernels;
  planted.sample = &spoil_then_sample;
  std::thread other(run, 1, std::cref(planted));
  run(0, planted);
  other.join();
  for (const ipc::AuditResult& audit : found) {
    EXPECT_EQ(audit.differences, 1) << audit.first;
    EXPECT_NEAR(audit.worst_logit, 1, 0.1);
    EXPECT_THAT(audit.first, HasSubstr("the logits of row 1 differ by"));
  }
}

void sample_another(const kernels::SampleArgs& args, const kernels::Team& team) {
  if (team.rank != 0) return;
  int32_t& token = args.outputs[0].tokens[1];  // the second run's, whatever the turn
  token = (token + 1) % args.vocab_size;
}

void sample_and_change(kernels::StreamRef stream, const kernels::SampleArgs& args) {
  real_kernels->sample(stream, args);
  kernels::launch<&sample_another>(stream, args, "another");
}

TEST(Audit, CG41FindsAGreedyTokenThatTheSameLogitsDoNotGive) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a kernel of the host";
  const auto session = started(audited("FULL"));
  worker::OpContext& context = session->runner().hosted().context;
  real_kernels = context.kernels;
  kernels::KernelTable planted = *context.kernels;
  planted.sample = &sample_and_change;
  context.kernels = &planted;
  const ipc::AuditResult found =
      run_audited(*session, {{0, prompt(6, 1), 0}, {1, prompt(3, 2), 0}}).audit;
  EXPECT_EQ(found.differences, 1) << found.first;
  EXPECT_EQ(found.worst_logit, 0);
  EXPECT_THAT(found.first, HasSubstr("sample gave row 1 token"));
  EXPECT_THAT(found.first, HasSubstr("from the same logits"));
}

void misplace_padding(const kernels::PrepareInputsArgs& args, const kernels::Team& team) {
  if (team.rank != 0) return;
  for (int32_t t = *args.inputs.live_tokens; t < args.tokens; ++t) {
    args.paged[0].kv_slots[t] = int64_t{5} * args.block_size;
  }
}

void prepare_and_misplace(kernels::StreamRef stream, const kernels::PrepareInputsArgs& args) {
  real_kernels->prepare_inputs(stream, args);
  kernels::launch<&misplace_padding>(stream, args, "misplace");
}

TEST(Audit, CG41FindsAPaddedRowInARealBlock) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a kernel of the host";
  Session session(model().directory(), audited("FULL"));
  worker::OpContext& context = session.runner().hosted().context;
  real_kernels = context.kernels;
  kernels::KernelTable planted = *context.kernels;
  planted.prepare_inputs = &prepare_and_misplace;
  context.kernels = &planted;
  session.start();
  const ipc::AuditResult found = run_audited(session, {{0, prompt(10, 1), 0}}).audit;  // key 16
  EXPECT_EQ(found.differences, 6) << "padded tokens";
  EXPECT_THAT(found.first, HasSubstr("prepare_inputs: the padded token 10 goes to block 5"));
}

// An eager run that writes no keys and values is not taken for one that writes the same.
TEST(Audit, CG41TheSecondRunHasToWriteItsOwnKeysAndValues) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a kernel of the host";
  const auto session = started(audited("FULL"));
  worker::OpContext& context = session->runner().hosted().context;
  kernels::KernelTable planted = *context.kernels;
  planted.rope_kv_write = [](kernels::StreamRef, const kernels::RopeKvWriteArgs&) {};
  context.kernels = &planted;
  const ipc::AuditResult found = run_audited(*session, {{0, prompt(6, 1), 0}}).audit;
  EXPECT_GE(found.differences, 2 * kLayers * 6) << "keys and values of every token";
  EXPECT_EQ(found.worst_kv, INFINITY);
}

}  // namespace
}  // namespace refrain::tests
