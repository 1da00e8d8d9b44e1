// A group that takes another role keeps weights and blocks, and captures what the role needs before
// its first step (CG-23).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/graph/runner/session.h"
#include "worker/program/passes/passes.h"

namespace refrain::tests {
namespace {

using ::testing::Each;
using worker::MemoryTag;

std::set<std::string> modes_of(const ipc::Ready& ready) {
  std::set<std::string> modes;
  for (const ipc::ManifestEntry& entry : ready.manifest) modes.insert(entry.mode);
  return modes;
}

// As EngineConfig::worker_of writes it.
ipc::WorkerConfig of_role(ipc::WorkerConfig config, bool prefill) {
  config.cudagraph_mode = prefill ? "PIECEWISE" : "FULL_DECODE_ONLY";
  config.publish_layers = prefill;
  return config;
}

void change_role(Session& session, bool prefill) {
  worker::ProgramRunner& runner = session.runner();
  const Status changed = runner.change_role(of_role(session.options().config, prefill));
  ASSERT_TRUE(changed.has_value()) << changed.error().message;
  const Status captured = runner.capture();
  ASSERT_TRUE(captured.has_value()) << captured.error().message;
  auto ready = runner.back_cache();
  ASSERT_TRUE(ready.has_value()) << ready.error().message;
  session.ready = std::move(*ready);
}

// Ten tokens behind a prompt, in graphs where the role has some.
std::vector<TokenId> generate(Session& session, SlotId slot, ipc::RuntimeMode decode_mode) {
  std::vector<TokenId> tokens = session.run({{slot, prompt(9, 1), 0}}).tokens;
  for (int i = 0; i < 10; ++i) {
    const auto result = session.run({{slot, {tokens.back()}, 9 + i}});
    EXPECT_EQ(result.mode, decode_mode);
    tokens.push_back(result.tokens.at(0));
  }
  return tokens;
}

TEST(Role, GraphsAreThoseOfTheNewRoleAndTokensTheSame_CG23) {
  SessionOptions options;
  options.config = of_role(options.config, false);
  const auto session = started(options);
  const auto of_decode = session->ready;
  EXPECT_EQ(modes_of(of_decode), std::set<std::string>{"FULL"});
  const auto expected = generate(*session, 0, ipc::RuntimeMode::kFull);

  ASSERT_NO_FATAL_FAILURE(change_role(*session, true));
  EXPECT_EQ(session->ready.cudagraph_mode, "PIECEWISE");
  EXPECT_EQ(modes_of(session->ready), std::set<std::string>{"PIECEWISE"});
  EXPECT_EQ(generate(*session, 0, ipc::RuntimeMode::kPiecewise), expected);
  const worker::KvMemory memory = session->runner().kv_memory();
  ASSERT_NE(memory.flags, nullptr) << "others read its layers";

  ASSERT_NO_FATAL_FAILURE(change_role(*session, false));
  EXPECT_EQ(generate(*session, 0, ipc::RuntimeMode::kFull), expected);
  EXPECT_EQ(session->runner().kv_memory().flags, nullptr);
  ASSERT_EQ(session->ready.manifest.size(), of_decode.manifest.size());
  for (size_t i = 0; i < of_decode.manifest.size(); ++i)
    EXPECT_EQ(session->ready.manifest[i].digest, of_decode.manifest[i].digest);
}

// A request that was half done goes on behind the keys and values that it has.
TEST(Role, BlocksKeepWhatTheyHold_CG23) {
  SessionOptions options;
  options.config = of_role(options.config, true);
  const auto session = started(options);
  const auto expected = generate(*session, 2, ipc::RuntimeMode::kPiecewise);
  ASSERT_NO_FATAL_FAILURE(change_role(*session, false));
  ipc::Step step = session->make_step({{2, {expected[3]}, 12}});
  step.setups.push_back(session->setup());  // slots begin anew
  step.setups.back().slot = 2;
  step.setups.back().prompt_len = 9;
  for (int32_t block = 0; block < 2; ++block) {
    step.blocks[0].slot.push_back(2);
    step.blocks[0].index.push_back(block);
    step.blocks[0].block.push_back(1 + 2 * 8 + block);
  }
  session->runner().submit(step);
  EXPECT_EQ(session->runner().wait().tokens.at(0), expected[4]);
}

// What the graphs before had is free again: only the flags of layers come and go.
TEST(Role, ManyChangesTakeNoMoreMemoryThanTheFirst_CG23) {
  SessionOptions options;
  options.config = of_role(options.config, false);
  const auto session = started(options);
  ASSERT_NO_FATAL_FAILURE(change_role(*session, true));
  ASSERT_NO_FATAL_FAILURE(change_role(*session, false));
  const worker::MemoryAccount before = session->device().memory();
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(change_role(*session, true));
    ASSERT_NO_FATAL_FAILURE(change_role(*session, false));
  }
  const worker::MemoryAccount now = session->device().memory();
  for (int tag = 0; tag < worker::kNumMemoryTags; ++tag) {
    // What a GPU takes for graphs is told by what is free before and after, which is in pages.
    if (static_cast<MemoryTag>(tag) == MemoryTag::kGraphs && options.device != "host") continue;
    EXPECT_EQ(now.by_tag[tag], before.by_tag[tag]) << to_string(static_cast<MemoryTag>(tag));
  }
}

}  // namespace
}  // namespace refrain::tests
