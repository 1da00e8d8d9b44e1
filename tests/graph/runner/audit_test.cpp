// CG-30, CG-41: audited steps give the tokens of steps that are not, and what a replay computes
// otherwise than its Program is found, with program, key and op.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/graph/runner/audit_case.h"

namespace refrain::tests {
namespace {

using ::testing::HasSubstr;

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

TEST(Audit, CG41InBFloat16) {
  SessionOptions plain = with_mode("FULL"), with_audit = audited("FULL");
  plain.config.dtype = with_audit.config.dtype = "bfloat16";
  const auto session = started(with_audit);
  const Outcome got = run_mix(*session, true);
  EXPECT_EQ(got.tokens, run_mix(*started(plain), false).tokens);
  for (const ipc::AuditResult& audit : got.audits) EXPECT_EQ(audit.differences, 0) << audit.first;
  for (worker::Op& op : session->runner().hosted().program.ops) {
    if (auto* norm = std::get_if<worker::AddRmsNormOp>(&op)) norm->eps = 10;
    if (auto* norm = std::get_if<worker::RmsNormOp>(&op)) norm->eps = 10;
  }
  EXPECT_GT(run_audited(*session, {{0, prompt(10, 1), 0}}).audit.differences, 0);
}

TEST(Audit, CG41RanksAuditTogether) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "a GPU a rank";
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Session session(model().directory(),
                      audited_rank_of_two(rank, fmt::format("audit-{}", getpid())));
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
  const auto run = [&] { return run_audited(*session, {{0, prompt(6, 1), 0}}).audit; };
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
  const ipc::StepResult result = run_audited(*session, {{0, prompt(6, 1), 0}});
  EXPECT_GT(result.audit.differences, 0);
  EXPECT_EQ(result.tokens, first.tokens);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(session->run({{0, {kTokenOnDevice}, 6 + i}}).tokens,
              reference->run({{0, {kTokenOnDevice}, 6 + i}}).tokens);
  }
}

// What differs between an audited and a plain run of these steps, with two in flight.
TEST(Audit, CG41WithStepsInFlightAndSlotsTakenAgain) {
  const auto plain = started(with_mode("FULL_AND_PIECEWISE"));
  const auto session = started(audited("FULL_AND_PIECEWISE"));
  const auto run = [](Session& on, bool audit) {
    std::vector<TokenId> tokens;
    int submitted = 0;
    const auto submit = [&](const std::vector<Row>& rows) {
      ipc::Step step = on.make_step(rows);
      step.audit = audit && ++submitted % 2 == 0;
      on.runner().submit(step);
    };
    const auto wait = [&] {
      const ipc::StepResult result = on.runner().wait();
      EXPECT_EQ(result.audit.differences, 0) << result.audit.first;
      tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
    };
    on.setup().temperature = 0.9f;
    on.setup().frequency_penalty = 1.5f;
    on.setup().seed = 4;
    submit({{0, prompt(5, 1), 0}, {1, prompt(7, 2), 0}});
    for (int i = 0; i < 8; ++i) {
      submit({{0, {kTokenOnDevice}, 5 + i}, {1, {kTokenOnDevice}, 7 + i}});
      wait();
    }
    // Preempted: all its tokens again, the outputs among them, in two chunks.
    submit({{0, {kTokenOnDevice}, 13}, {1, prompt(12, 6), 0}});
    wait();
    submit({{0, {kTokenOnDevice}, 14}, {1, prompt(4, 7), 12}});
    wait();
    wait();
    return tokens;
  };
  EXPECT_EQ(run(*session, true), run(*plain, false));
}

// Only sample reads these parameters: the logits stay the same, the draw does not.
TEST(Audit, CG41FindsATokenThatIsDrawnOtherwiseAndMovesNoSlot) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "parameters in host memory";
  const auto session = started(audited("FULL"));
  const auto reference = started(with_mode("FULL"));
  worker::HostedProgram& hosted = session->runner().hosted();
  const auto params = static_cast<size_t>(worker::sample_op(hosted.program).params);
  const auto both = [&](const std::vector<Row>& rows, bool audit) {
    ipc::Step step = session->make_step(rows);
    step.audit = audit;
    session->runner().submit(step);
    const ipc::StepResult result = session->runner().wait();
    EXPECT_EQ(result.tokens, reference->run(rows).tokens);
    return result.audit;
  };
  for (Session* each : {session.get(), reference.get()}) {
    each->setup().temperature = 3;
    each->setup().seed = 9;
    each->setup().presence_penalty = 2;
    each->setup().frequency_penalty = 2;
  }
  EXPECT_EQ(both({{0, prompt(6, 1), 0}}, true).differences, 0);
  const worker::Addresses own = hosted.context.addresses[params];
  const auto* own_params = static_cast<const kernels::SlotParams*>(own[0]);
  std::vector<kernels::SlotParams> changed(
      own_params, own_params + hosted.program.value(static_cast<int32_t>(params)).rows.scale);
  changed[0].seed = 77;
  hosted.context.addresses[params].fill(changed.data());
  const ipc::AuditResult found = both({{0, {kTokenOnDevice}, 6}}, true);
  hosted.context.addresses[params] = own;
  EXPECT_EQ(found.differences, 1);
  EXPECT_EQ(found.worst_logit, 0);
  EXPECT_THAT(found.first, HasSubstr("sample gave row 0 token"));
  for (int i = 0; i < 20; ++i) both({{0, {kTokenOnDevice}, 7 + i}}, false);
}

}  // namespace
}  // namespace refrain::tests
