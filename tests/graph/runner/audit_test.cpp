// CG-30, CG-41: audited steps give the tokens of steps that are not, and what a replay computes
// otherwise than its Program is found, with program, key and op.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/graph/runner/session.h"

namespace refrain::tests {
namespace {

using ::testing::HasSubstr;

SessionOptions audited(const std::string& mode) {
  SessionOptions options = with_mode(mode);
  options.config.audit = true;
  options.keep_logits = false;
  return options;
}

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<ipc::AuditResult> audits;
};

// Chunks, decodes, mixed steps; greedy, drawn and penalised rows; slots used again.
Outcome run_mix(Session& session, bool audit) {
  Outcome outcome;
  const auto step = [&](const std::vector<Row>& rows) {
    ipc::Step message = session.make_step(rows);
    message.audit = audit;
    session.runner().submit(message);
    const ipc::StepResult result = session.runner().wait();
    outcome.tokens.insert(outcome.tokens.end(), result.tokens.begin(), result.tokens.end());
    outcome.audits.push_back(result.audit);
  };
  for (int round = 0; round < 2; ++round) {
    session.setup() = {};
    session.setup().temperature = 0;
    step({{0, prompt(5, 1), 0}});
    session.setup().temperature = 1.2f;
    session.setup().seed = 9;
    session.setup().repetition_penalty = 1.3f;
    step({{0, {kTokenOnDevice}, 5}, {1, prompt(9, 2), 0}});
    step({{0, {kTokenOnDevice}, 6}, {1, {kTokenOnDevice}, 9}, {2, prompt(20, 3), 0}});
    step({{2, prompt(7, 4), 20}, {1, {kTokenOnDevice}, 10}});
    for (int i = 0; i < 3; ++i) {
      step({{0, {kTokenOnDevice}, 7 + i},
            {1, {kTokenOnDevice}, 11 + i},
            {2, {kTokenOnDevice}, 27 + i}});
    }
    step({{1, {kTokenOnDevice}, 14}});
  }
  return outcome;
}

class AuditOfMode : public ::testing::TestWithParam<const char*> {};

TEST_P(AuditOfMode, CG41ChangesNoTokenAndFindsNothing) {
  const auto plain = started(with_mode(GetParam()));
  const auto session = started(audited(GetParam()));
  const Outcome expected = run_mix(*plain, false), got = run_mix(*session, true);
  EXPECT_EQ(got.tokens, expected.tokens);
  for (const ipc::AuditResult& audit : got.audits) {
    EXPECT_TRUE(audit.audited);
    EXPECT_EQ(audit.differences, 0) << audit.first;
    if (SessionOptions{}.device == "host") {
      EXPECT_EQ(audit.worst_logit, 0) << "bit for bit";
      EXPECT_EQ(audit.worst_kv, 0);
    }
  }
  for (const ipc::AuditResult& audit : expected.audits) EXPECT_FALSE(audit.audited);
}

INSTANTIATE_TEST_SUITE_P(Modes, AuditOfMode,
                         ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY",
                                           "FULL_AND_PIECEWISE"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Audit, CG41RanksAuditTogether) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a GPU a rank";
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      SessionOptions options = audited("FULL_AND_PIECEWISE");
      options.config.tensor_parallel_size = 2;
      options.rank = rank;
      options.token = fmt::format("audit-{}", getpid());
      Session session(model().directory(), options);
      session.start();
      outcomes[static_cast<size_t>(rank)] = run_mix(session, true);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(outcomes[0].tokens, outcomes[1].tokens);
  for (const Outcome& outcome : outcomes) {
    for (const ipc::AuditResult& audit : outcome.audits) {
      EXPECT_TRUE(audit.audited);
      EXPECT_EQ(audit.differences, 0) << audit.first;
    }
  }
}

// The Program is changed behind the back of what was captured.
TEST(Audit, CG41FindsAReplayThatComputesSomethingElse) {
  const auto session = started(audited("FULL"));
  worker::HostedProgram& hosted = session->runner().hosted();
  const auto run = [&] {
    ipc::Step step = session->make_step({{0, prompt(6, 1), 0}});
    step.audit = true;
    session->runner().submit(step);
    return session->runner().wait().audit;
  };
  EXPECT_EQ(run().differences, 0);
  for (worker::Op& op : hosted.program.ops) {
    if (auto* attention = std::get_if<worker::AttentionOp>(&op)) attention->scale *= 3;
  }
  const ipc::AuditResult scaled = run();
  EXPECT_GT(scaled.differences, 0);
  EXPECT_GT(scaled.worst_logit, 0);
  EXPECT_THAT(scaled.first, HasSubstr("key FULL 6"));
  EXPECT_THAT(scaled.first, HasSubstr("layer 1"))
      << "what the first layer wrote does not hang on attention";
}

TEST(Audit, CG41TheReplaysKeysAndValuesStay) {
  const auto session = started(audited("FULL"));
  worker::HostedProgram& hosted = session->runner().hosted();
  const auto reference = started(with_mode("FULL"));
  const auto first = reference->run({{0, prompt(6, 1), 0}});
  for (worker::Op& op : hosted.program.ops) {
    if (auto* norm = std::get_if<worker::AddRmsNormOp>(&op)) norm->eps = 10;
  }
  ipc::Step step = session->make_step({{0, prompt(6, 1), 0}});
  step.audit = true;
  session->runner().submit(step);
  const ipc::StepResult result = session->runner().wait();
  EXPECT_GT(result.audit.differences, 0);
  EXPECT_EQ(result.tokens, first.tokens);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(session->run({{0, {kTokenOnDevice}, 6 + i}}).tokens,
              reference->run({{0, {kTokenOnDevice}, 6 + i}}).tokens);
  }
}

}  // namespace
}  // namespace refrain::tests
