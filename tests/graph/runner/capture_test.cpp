// CG-18 … CG-26, CG-31: what start-up captures, shows, keeps and refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/graph/runner/late_device.h"
#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ipc::RuntimeMode;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> keys_of(const ipc::Ready& ready) {
  std::vector<std::string> keys;
  for (const ipc::ManifestEntry& e : ready.manifest) {
    keys.push_back(
        fmt::format("{} {}/{}{}", e.mode, e.num_tokens, e.num_reqs, e.uniform ? " uniform" : ""));
  }
  return keys;
}

TEST(Capture, CG21PiecewiseFirstThenFullEachFromLargeToSmall) {
  EXPECT_THAT(keys_of(started(with_mode("FULL_AND_PIECEWISE"))->ready),
              ElementsAre("PIECEWISE 16/6", "PIECEWISE 8/6", "PIECEWISE 6/6", "PIECEWISE 4/4",
                          "PIECEWISE 2/2", "PIECEWISE 1/1", "FULL 6/6 uniform", "FULL 4/4 uniform",
                          "FULL 2/2 uniform", "FULL 1/1 uniform"));
}

// On a device that asks for a run before each capture and has not ended it when the capture begins.
TEST(Capture, CG21EveryKeyIsWarmedUpAndItsStepsAreRight) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "this device is late by itself";
  SessionOptions options = with_mode("FULL_AND_PIECEWISE");
  const auto plain = started(options);
  EXPECT_EQ(plain->counters().num_warmup_runs, 0);
  options.wrap_device = make_late_device;
  const auto late = started(options);
  EXPECT_EQ(late->counters().num_warmup_runs, std::ssize(late->ready.manifest));
  options.config.cudagraph_num_of_warmups = 3;
  const auto often = started(options);
  EXPECT_EQ(often->counters().num_warmup_runs, 3 * std::ssize(often->ready.manifest));
  const auto all = {plain.get(), late.get(), often.get()};
  for (Session* session : all) session->run({{0, prompt(5, 0), 0}});
  const auto expected = plain->run({{0, {kTokenOnDevice}, 5}}).tokens;
  for (Session* session : {late.get(), often.get()})
    EXPECT_EQ(session->run({{0, {kTokenOnDevice}, 5}}).tokens, expected);
}

TEST(Capture, CG18PiecewiseKeyHasOneGraphMoreThanLayers) {
  const auto session = started(with_mode("PIECEWISE"));
  for (const ipc::ManifestEntry& entry : session->ready.manifest) {
    EXPECT_EQ(entry.pieces, 3 * kLayers + 1);  // g e e g e e g
  }
  const auto keys = static_cast<int64_t>(session->ready.manifest.size());
  EXPECT_EQ(session->counters().num_graphs_captured, keys * (kLayers + 1));
  EXPECT_EQ(session->counters().num_pieces, keys * (3 * kLayers + 1));
}

// CG-20: a FULL capture records the inner ops once, in one graph, and captures nothing inside.
TEST(Capture, CG20FullCaptureRecordsEveryOpOnce) {
  const auto session = started(with_mode("FULL"));
  for (const ipc::ManifestEntry& entry : session->ready.manifest) {
    EXPECT_EQ(entry.pieces, 1);
    const worker::BatchDescriptor key{entry.num_tokens, entry.num_reqs, entry.uniform};
    const auto& ops = session->runner().hosted().lowering(key).program.ops;
    if (SessionOptions{}.device == "host") {
      EXPECT_EQ(entry.nodes, std::ssize(ops));
    } else {  // an op may be two kernels; of one row a GPU has a node fewer, not known of which op
      EXPECT_GE(entry.nodes, std::ssize(ops) - (key.num_tokens == 1 ? 1 : 0));
    }
  }
  EXPECT_EQ(session->counters().num_graphs_captured,
            static_cast<int64_t>(session->ready.manifest.size()));
  // The pieces between the splitting ops and those together have the nodes of the whole.
  const auto piecewise = started(with_mode("PIECEWISE"));
  EXPECT_EQ(piecewise->ready.manifest[0].nodes + 2 * kLayers, session->ready.manifest[0].nodes);
}

TEST(Capture, CG20StepRunsItsOwnModesPiecesOnly) {
  const auto session = started(with_mode("FULL_AND_PIECEWISE"));
  const auto replays = session->counters().num_replays;
  const auto eager = session->counters().num_eager_runs;
  // PIECEWISE 6: g e e g e e, and what is of requests for one and not for six
  session->run({{0, prompt(5, 0), 0}});
  EXPECT_EQ(session->counters().num_replays, replays + kLayers);
  EXPECT_EQ(session->counters().num_eager_runs, eager + 2 * kLayers + 1);
  session->run({{0, {kTokenOnDevice}, 5}});  // FULL 1: g
  EXPECT_EQ(session->counters().num_replays, replays + kLayers + 1);
  EXPECT_EQ(session->counters().num_eager_runs, eager + 2 * kLayers + 1);
}

// As many requests as the key has: all of it is replayed.
TEST(Capture, CG20APieceOfRequestsIsReplayedForAsManyAsWereRecorded) {
  const auto session = started(with_mode("PIECEWISE"));
  std::vector<Row> rows;
  for (int slot = 0; slot < 4; ++slot) rows.push_back({slot, prompt(1, slot), 0});
  const auto replays = session->counters().num_replays;
  const auto eager = session->counters().num_eager_runs;
  session->run(rows);
  EXPECT_EQ(session->counters().num_replays, replays + kLayers + 1);
  EXPECT_EQ(session->counters().num_eager_runs, eager + 2 * kLayers);
}

TEST(Capture, CG19EmptySplittingOpsMeanNoPiecewise) {
  SessionOptions options = with_mode("FULL_AND_PIECEWISE");
  options.config.has_splitting_ops = true;
  const auto session = started(options);
  EXPECT_EQ(session->ready.cudagraph_mode, "FULL_DECODE_ONLY");
  EXPECT_THAT(session->ready.warnings, Contains(HasSubstr("no splitting op")));
}

TEST(Capture, CG19UnknownSplittingOpIsAnErrorThatListsTheOps) {
  SessionOptions options = with_mode("PIECEWISE");
  options.config.has_splitting_ops = true;
  options.config.splitting_ops = {"atention"};
  try {
    Session session(model().directory(), options);
    FAIL() << "accepted";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("atention"), HasSubstr("rope_kv_write")));
  }
}

TEST(Capture, CG22ManifestAndProgressShowEveryKey) {
  const auto session = started(with_mode("FULL_AND_PIECEWISE"));
  std::vector<ipc::Progress> captures;
  for (const ipc::Progress& p : session->progress) {
    if (p.phase == ipc::StartPhase::kCapture) captures.push_back(p);
  }
  ASSERT_THAT(captures, SizeIs(session->ready.manifest.size()));
  int64_t bytes = 0, nodes = 0, pieces = 0;
  for (size_t i = 0; i < captures.size(); ++i) {
    EXPECT_EQ(captures[i].done, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(captures[i].total, static_cast<int64_t>(captures.size()));
    const ipc::ManifestEntry& entry = session->ready.manifest[i];
    EXPECT_THAT(captures[i].detail, HasSubstr(fmt::format("{} {}", entry.mode, entry.num_tokens)));
    EXPECT_THAT(captures[i].detail, HasSubstr(fmt::format("{} bytes", entry.bytes)));
    EXPECT_GT(entry.nodes, 0);
    EXPECT_GT(entry.capture_ms, 0);
    EXPECT_NE(entry.digest, 0u);
    if (SessionOptions{}.device == "host") {  // small CUDA graphs share memory: some need no more
      EXPECT_GT(entry.bytes, 0) << captures[i].detail;
    }
    bytes += entry.bytes;
    nodes += entry.nodes;
    pieces += entry.pieces;
  }
  // The sums are those of three accounts kept elsewhere: pool, device, counters.
  EXPECT_EQ(bytes, static_cast<int64_t>(session->runner().pool().graph_bytes()));
  const auto memory = session->device().memory();
  EXPECT_EQ(bytes,
            static_cast<int64_t>(memory.by_tag[static_cast<int>(worker::MemoryTag::kGraphs)]));
  EXPECT_EQ(nodes, session->counters().num_nodes);
  EXPECT_EQ(pieces, session->counters().num_pieces);
}

std::vector<uint64_t> digests_of(const ipc::Ready& ready) {
  std::vector<uint64_t> digests;
  for (const ipc::ManifestEntry& entry : ready.manifest) digests.push_back(entry.digest);
  return digests;
}

TEST(Capture, CG22DigestsAreEqualOnTwoRunsAndDifferWithTheSizes) {
  const SessionOptions options = with_mode("FULL");
  SessionOptions other = options;
  other.config.cudagraph_capture_sizes = {1, 2, 5, 8, 16};
  const auto first = digests_of(started(options)->ready);
  EXPECT_EQ(first, digests_of(started(options)->ready));
  const auto changed = digests_of(started(other)->ready);
  ASSERT_EQ(first.size(), changed.size());
  EXPECT_NE(first, changed);
  EXPECT_EQ(first.front(), changed.front());  // the key both have
}

// The Program of a session, changed before it is captured: an attribute that ranks share, or one
// that follows from a rank's shard.
ipc::ManifestEntry captured_entry(const std::function<void(worker::Op&)>& change,
                                  int inner = TinyModelShape{}.inner) {
  SessionOptions options = with_mode("FULL");
  options.config.cudagraph_capture_sizes = {8};
  TinyModelShape shape;
  shape.inner = inner;
  const TinyModel model(shape);
  Session session(model.directory(), options);
  for (worker::Lowering* lowering : session.runner().hosted().lowerings()) {
    for (worker::Op& op : lowering->program.ops) change(op);
  }
  session.start();
  return session.ready.manifest.front();
}

TEST(Capture, CG22DigestsTellParametersFunctionsAndShapesApart) {
  const auto nothing = [](worker::Op&) {};
  const ipc::ManifestEntry plain = captured_entry(nothing), again = captured_entry(nothing);
  EXPECT_EQ(again.digest, plain.digest);
  EXPECT_EQ(again.launch_digest, plain.launch_digest) << "at other addresses";

  const ipc::ManifestEntry scaled = captured_entry([](worker::Op& op) {
    if (auto* attention = std::get_if<worker::AttentionOp>(&op)) attention->scale *= 2;
  });
  EXPECT_NE(scaled.digest, plain.digest) << "no rank scales otherwise";
  EXPECT_NE(scaled.launch_digest, plain.launch_digest);

  const ipc::ManifestEntry wider = captured_entry(nothing, 128);
  EXPECT_EQ(wider.digest, plain.digest) << "as ranks of unequal shards do";
  EXPECT_NE(wider.launch_digest, plain.launch_digest);

  const ipc::ManifestEntry other = captured_entry([](worker::Op& op) {
    if (const auto* norm = std::get_if<worker::RmsNormOp>(&op); norm != nullptr && norm->group == 0)
      op = worker::AddOp{.a = norm->in, .b = norm->in, .out = norm->out};
  });
  EXPECT_NE(other.digest, plain.digest);
  EXPECT_NE(other.launch_digest, plain.launch_digest);
}

TEST(Capture, CG23UncapturedKeyRaises) {
  worker::ExecutableTable<worker::BatchDescriptor> table;
  table.resize(RuntimeMode::kFull, 2);
  EXPECT_THROW(table.at(RuntimeMode::kFull, 1), FatalError);
  EXPECT_THROW(table.at(RuntimeMode::kFull, 2), FatalError);
  EXPECT_THROW(table.at(RuntimeMode::kPiecewise, 0), FatalError);
}

// Prompts and decodes of every size, above the largest too. On the host captures are counted where
// the stream begins them, whoever begins them and whatever becomes of the graph.
TEST(Capture, CG23NothingIsCapturedOnTheRequestPath) {
  for (const char* mode : {"PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"}) {
    SCOPED_TRACE(mode);
    SessionOptions options = with_mode(mode);
    const auto begun = std::make_shared<int>(0);
    if (options.device == "host") {
      options.wrap_device = [begun](std::unique_ptr<worker::Device> host) {
        return make_late_device_that_counts(std::move(host), begun);
      };
    }
    const auto session = started(options);
    const worker::GraphCounters before = session->counters();
    const int begun_at_start = *begun;
    const auto graph_bytes = [&] {
      return session->device().memory().by_tag[static_cast<int>(worker::MemoryTag::kGraphs)];
    };
    const size_t bytes_before = graph_bytes();
    EXPECT_GT(before.num_graphs_captured, 0);
    if (options.device == "host") {
      EXPECT_EQ(begun_at_start, before.num_graphs_captured);
    }
    for (int tokens = 1; tokens <= 20; ++tokens) {
      session->run({{0, prompt(tokens, tokens), 0}});
      session->run({{0, {kTokenOnDevice}, tokens}});
    }
    std::vector<Row> decodes;
    for (SlotId slot = 0; slot < 6; ++slot) {
      session->run({{slot, prompt(3, slot), 0}});
      decodes.push_back({slot, {kTokenOnDevice}, 3});
      session->run(decodes);
      for (Row& row : decodes) ++row.computed;
    }
    EXPECT_EQ(*begun, begun_at_start);
    EXPECT_EQ(session->counters().num_graphs_captured, before.num_graphs_captured);
    EXPECT_EQ(session->counters().num_nodes, before.num_nodes);
    EXPECT_EQ(session->counters().num_pieces, before.num_pieces);
    EXPECT_EQ(session->counters().num_warmup_runs, before.num_warmup_runs);
    EXPECT_EQ(graph_bytes(), bytes_before);
    EXPECT_GT(session->counters().num_replays, before.num_replays);
  }
}

TEST(Capture, CG24ArenaIsThatOfTheLargestBatchHoweverManyKeys) {
  SessionOptions one = with_mode("FULL_AND_PIECEWISE");
  one.config.cudagraph_capture_sizes = {48};
  one.config.max_num_seqs = 48;
  SessionOptions many = one;
  many.config.cudagraph_capture_sizes = {1, 2, 4, 8, 16, 24, 32, 40, 48};
  one.num_blocks = many.num_blocks = 400;
  const auto few_keys = started(one), all_keys = started(many);
  EXPECT_GT(all_keys->ready.manifest.size(), few_keys->ready.manifest.size());
  EXPECT_EQ(few_keys->ready.arena_bytes, all_keys->ready.arena_bytes);
  const auto plan = worker::plan_memory(all_keys->runner().hosted().program, {48, 48});
  EXPECT_EQ(all_keys->ready.arena_bytes, static_cast<int64_t>(plan.bytes));
  const auto memory = all_keys->device().memory();
  EXPECT_EQ(memory.by_tag[static_cast<int>(worker::MemoryTag::kArena)], plan.bytes);
}

TEST(Capture, CG24MemoryAccountNamesEveryTag) {
  const auto session = started(with_mode("FULL"));
  EXPECT_THAT(session->ready.memory_tags, ElementsAre("weights", "arena", "graphs", "collectives",
                                                      "kv_cache", "inputs", "other"));
  ASSERT_THAT(session->ready.memory_bytes, SizeIs(7));
  EXPECT_EQ(session->ready.memory_bytes[2],
            static_cast<int64_t>(session->runner().pool().graph_bytes()));
}

TEST(Capture, CG2EnforceEagerCapturesNothing) {
  SessionOptions options = with_mode("FULL");
  options.config.enforce_eager = true;
  const auto session = started(options);
  EXPECT_EQ(session->ready.cudagraph_mode, "NONE");
  EXPECT_THAT(session->ready.manifest, IsEmpty());
  EXPECT_EQ(session->run({{0, prompt(4, 0), 0}}).mode, RuntimeMode::kNone);
}

TEST(Steps, CG31ReplyCarriesTheKey) {
  const auto session = started(with_mode("FULL_AND_PIECEWISE"));
  const ipc::StepResult mixed = session->run({{0, prompt(5, 0), 0}, {1, prompt(6, 1), 0}});
  EXPECT_EQ(mixed.mode, RuntimeMode::kPiecewise);
  EXPECT_EQ(mixed.key_tokens, 16);
  EXPECT_EQ(mixed.key_reqs, 2);
  EXPECT_EQ(mixed.num_tokens, 11);
  const ipc::StepResult decode = session->run({{0, {kTokenOnDevice}, 5}, {1, {kTokenOnDevice}, 6}});
  EXPECT_EQ(decode.mode, RuntimeMode::kFull);
  EXPECT_EQ(decode.key_tokens, 2);
  EXPECT_TRUE(decode.key_uniform);
}

TEST(Steps, CG13IdleStepRunsNothing) {
  const auto session = started(with_mode("FULL"));
  const auto replays = session->counters().num_replays;
  const ipc::StepResult idle = session->run({});
  EXPECT_EQ(idle.mode, RuntimeMode::kNone);
  EXPECT_EQ(idle.key_tokens, 0);
  EXPECT_THAT(idle.tokens, IsEmpty());
  EXPECT_EQ(session->counters().num_replays, replays);
}

TEST(Steps, CG34WhatNoGraphCoversRunsEagerly) {
  const auto session = started(with_mode("PIECEWISE"));
  const auto reference = started(with_mode("NONE"));
  const std::vector<Row> rows = {{0, prompt(30, 0), 0}};  // above every key
  const auto eager = session->counters().num_eager_runs;
  const ipc::StepResult result = session->run(rows);
  EXPECT_EQ(result.mode, RuntimeMode::kNone);
  EXPECT_EQ(session->counters().num_eager_runs, eager + 1);
  EXPECT_EQ(result.tokens, reference->run(rows).tokens);
}

}  // namespace
}  // namespace refrain::tests
