// What a step may say and what it changes on the device: mistakes, depth two, sampling side data,
// long block tables, KV sizing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/graph/runner/session.h"
#include "tests/graph/tiny_model.h"

namespace refrain::tests {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void expect_refused(Session& session, const ipc::Step& step, const char* what) {
  try {
    session.runner().submit(step);
    FAIL() << "accepted: " << what;
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), HasSubstr(what));
  }
}

TEST(Steps, SchedulingMistakesAreFatalAndNamed) {
  const auto session = started();
  const auto good = [&] { return session->make_step({{0, prompt(4, 0), 0}}); };
  ipc::Step step = good();
  step.runs[0].rows.slot[0] = 6;
  expect_refused(*session, step, "slot 6");
  step = good();
  step.runs[0].rows.token_ids.pop_back();
  expect_refused(*session, step, "token_ids");
  step = good();
  step.runs[0].rows.token_ids[1] = 259;
  expect_refused(*session, step, "vocabulary of 259");
  step = good();
  step.runs[0].rows.computed[0] = 61;
  expect_refused(*session, step, "max_model_len");
  step = good();
  step.blocks[0].block[0] = 0;
  expect_refused(*session, step, "block 0");
  step = good();
  step.blocks[0].block[0] = 64;
  expect_refused(*session, step, "block 64");
  step = good();
  step.runs[0].rows.flags.clear();
  expect_refused(*session, step, "differ in length");
  step = session->make_step({{0, prompt(4, 0), 0}, {1, prompt(4, 0), 0}});
  step.runs[0].rows.slot[1] = 0;
  expect_refused(*session, step, "takes part twice");
  step = good();
  step.cascade = true;
  step.shared_prefix = 8;
  step.shared_rows = 2;
  expect_refused(*session, step, "2 rows share a prefix of 8 tokens");
  step = good();
  step.shared_rows = -1;
  expect_refused(*session, step, "-1 rows share a prefix of 0 tokens");
  step = session->make_step({{0, prompt(40, 0), 0}, {1, prompt(9, 0), 0}});
  expect_refused(*session, step, "max_num_batched_tokens");
}

// it ends its own request, and not the group.
TEST(Steps, RowWithoutAnyPossibleTokenIsNamedAndGivesNoToken_R22) {
  const auto session = started();
  ipc::Step step = session->make_step({{0, prompt(4, 0), 0}, {1, prompt(3, 1), 0}});
  step.setups[0].has_allowed_tokens = true;  // and none is allowed
  session->runner().submit(step);
  const ipc::StepResult result = session->runner().wait();
  EXPECT_EQ(result.tokens[0], ipc::kNoFiniteLogit);
  EXPECT_GE(result.tokens[1], 0);
}

// share_keys leaves out what the plan calls a shared prefix, in steps without one, too.
TEST(Steps, CG13APlanForgetsItsPrefixWithTheFirstStepThatHasNone) {
  const auto session = started();
  worker::HostedProgram& hosted = session->runner().hosted();
  const worker::ValueId plan = worker::attention_plan_of(hosted.program, 0).value;
  ASSERT_NE(plan, worker::kNoValue);
  const auto sharing_rows = [&] {
    std::vector<int32_t> head(kernels::kPlanHeader);
    const auto to = session->device().allocate_pinned(head.size() * sizeof(int32_t));
    hosted.context.stream->copy(to->data(), hosted.context.address(plan), to->bytes());
    hosted.context.stream->synchronize();
    std::memcpy(head.data(), to->data(), to->bytes());
    return head[kernels::kPlanSharedRows];
  };
  session->run({{0, prompt(12, 0), 0}, {1, prompt(12, 0), 0}});
  ipc::Step step = session->make_step({{0, {kTokenOnDevice}, 12}, {1, {kTokenOnDevice}, 12}});
  step.cascade = true;
  step.shared_prefix = 8;
  step.shared_rows = 2;
  session->runner().submit(step);
  session->runner().wait();
  EXPECT_EQ(sharing_rows(), 2);
  session->run({{0, {kTokenOnDevice}, 13}, {1, {kTokenOnDevice}, 13}});
  EXPECT_EQ(sharing_rows(), 0);
}

TEST(Steps, TwoStepsMayBeInFlightAndNoMore) {
  const auto session = started();
  const auto reference = started();
  session->runner().submit(session->make_step({{0, prompt(4, 0), 0}}));
  session->runner().submit(session->make_step({{0, {kTokenOnDevice}, 4}}));
  EXPECT_EQ(session->runner().in_flight(), 2);
  expect_refused(*session, session->make_step({{0, {kTokenOnDevice}, 5}}), "in flight");
  const ipc::StepResult first = session->runner().wait();
  const ipc::StepResult second = session->runner().wait();
  EXPECT_EQ(first.step, 1u);
  EXPECT_EQ(second.step, 2u);
  EXPECT_EQ(first.tokens, reference->run({{0, prompt(4, 0), 0}}).tokens);
  EXPECT_EQ(second.tokens, reference->run({{0, {kTokenOnDevice}, 4}}).tokens);
  EXPECT_THROW(session->runner().wait(), FatalError);
}

TEST(Steps, TokenOnDeviceIsTheTokenSampledLast) {
  const auto session = started();
  const TokenId sampled = session->run({{0, prompt(4, 0), 0}}).tokens[0];
  const ipc::StepResult on_device = session->run({{0, {kTokenOnDevice}, 4}});
  const std::vector<float> logits = session->runner().read_logits();
  session->run({{1, prompt(4, 0), 0}});
  EXPECT_EQ(session->run({{1, {sampled}, 4}}).tokens, on_device.tokens);
  EXPECT_EQ(session->runner().read_logits(), logits);
}

TEST(Steps, ChunkedPromptGivesTheLogitsOfTheWholePrompt) {
  const auto session = started();
  session->run({{0, prompt(20, 3), 0}});
  const std::vector<float> whole = session->runner().read_logits();
  const std::vector<TokenId> tokens = prompt(20, 3);
  const auto chunk = [&](int begin, int end) {
    return std::vector<TokenId>(tokens.begin() + begin, tokens.begin() + end);
  };
  session->run({{1, chunk(0, 7), 0}});
  session->run({{1, chunk(7, 8), 7}});
  session->run({{1, chunk(8, 20), 8}});
  expect_same_values(session->runner().read_logits(), whole);
}

TEST(Steps, RowsThatDoNotSampleHoldNoToken) {
  const auto session = started();
  ipc::Step step = session->make_step({{0, prompt(4, 0), 0}, {1, prompt(3, 1), 0}});
  step.runs[0].rows.flags[0] = 0;
  session->runner().submit(step);
  const ipc::StepResult result = session->runner().wait();
  EXPECT_EQ(result.token_offsets, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_THAT(result.tokens, SizeIs(1));
  EXPECT_THAT(result.logprobs, IsEmpty());
}

TEST(Sampling, LogitBiasReachesTheSlotItIsFor) {
  const auto session = started();
  session->setup().bias_tokens = {17, 42};
  session->setup().bias_values = {-100.0f, 1000.0f};
  EXPECT_EQ(session->run({{0, prompt(4, 0), 0}}).tokens[0], 42);
  EXPECT_EQ(session->run({{0, {kTokenOnDevice}, 4}}).tokens[0], 42);
  session->setup().bias_tokens.clear();
  session->setup().bias_values.clear();
  const auto reference = started();
  EXPECT_EQ(session->run({{1, prompt(4, 0), 0}}).tokens,
            reference->run({{1, prompt(4, 0), 0}}).tokens);
  // The slot's next request is free of it.
  EXPECT_EQ(session->run({{0, prompt(4, 0), 0}}).tokens,
            reference->run({{0, prompt(4, 0), 0}}).tokens);
}

TEST(Sampling, AllowedTokensAreTheOnlyOnes) {
  const auto session = started();
  session->setup().has_allowed_tokens = true;
  session->setup().allowed_tokens = {5, 31, 32, 258};
  for (int i = 0; i < 5; ++i) {
    const TokenId token = session->run({{i, prompt(4 + i, i), 0}}).tokens[0];
    EXPECT_THAT((std::vector<TokenId>{5, 31, 32, 258}), ::testing::Contains(token));
  }
}

// As a mask, too, which is shorter for many tokens; it may end before the vocabulary does.
TEST(Sampling, AMaskOfAllowedTokensIsTheSameAsTheirList_R23) {
  const auto session = started();
  session->setup().has_allowed_tokens = true;
  session->setup().allowed_mask = {1u << 5 | 1u << 31, 1u};
  for (int i = 0; i < 5; ++i) {
    const TokenId token = session->run({{i, prompt(4 + i, i), 0}}).tokens[0];
    EXPECT_THAT((std::vector<TokenId>{5, 31, 32}), ::testing::Contains(token));
  }
  ipc::Step step = session->make_step({{5, prompt(4, 0), 0}});
  const auto words = static_cast<size_t>((TinyModelShape().vocab + 31) / 32);
  step.setups[0].allowed_mask.assign(words, ~0u);
  expect_refused(*session, step, "beyond a vocabulary");
  step.setups[0].allowed_mask.assign(words + 1, 0u);
  expect_refused(*session, step, "beyond a vocabulary");
}

TEST(Sampling, EndTokensAreMaskedUntilMinTokensAreMade) {
  const auto session = started();
  const std::vector<TokenId> others = {5, 31, 32};
  session->setup().min_tokens = 2;
  for (TokenId token = 0; token < TinyModelShape().vocab; ++token)
    if (std::ranges::count(others, token) == 0) session->setup().end_tokens.push_back(token);
  std::vector<TokenId> tokens = prompt(4, 0);
  for (int i = 0; i < 2; ++i) {
    const auto computed = static_cast<int32_t>(i == 0 ? 0 : tokens.size() - 1);
    const std::vector<TokenId> next = i == 0 ? tokens : std::vector<TokenId>{kTokenOnDevice};
    tokens.push_back(session->run({{0, next, computed}}).tokens[0]);
    EXPECT_THAT(others, ::testing::Contains(tokens.back()));
  }
  const auto reference = started();
  EXPECT_EQ(session->run({{0, {kTokenOnDevice}, 5}}).tokens,
            reference->run({{0, tokens, 0}}).tokens);
  // One that comes back with its tokens, after a preemption, begins without the mask.
  ipc::Step resumed = session->make_step({{1, tokens, 0}});
  resumed.setups[0].prompt_len = 4;
  session->runner().submit(resumed);
  EXPECT_EQ(session->runner().wait().tokens, reference->run({{1, tokens, 0}}).tokens);
}

TEST(Sampling, MinTokensKeepToTheAllowedTokens) {
  const auto session = started();
  session->setup().has_allowed_tokens = true;
  session->setup().allowed_tokens = {5, 31, 32};
  session->setup().min_tokens = 1;
  session->setup().end_tokens = {5, 31};
  EXPECT_EQ(session->run({{0, prompt(4, 0), 0}}).tokens[0], 32);
  const TokenId next = session->run({{0, {kTokenOnDevice}, 4}}).tokens[0];
  EXPECT_THAT((std::vector<TokenId>{5, 31, 32}), ::testing::Contains(next));
}

TEST(Sampling, LogprobsComeForTheRowsThatAsk) {
  const auto session = started();
  ipc::Step step =
      session->make_step({{0, prompt(4, 0), 0}, {1, prompt(5, 1), 0}, {2, prompt(3, 2), 0}});
  step.setups[1].num_logprobs = 3;
  step.setups[2].num_logprobs = 0;
  session->runner().submit(step);
  const ipc::StepResult result = session->runner().wait();
  ASSERT_THAT(result.logprobs, SizeIs(3));
  EXPECT_EQ(result.top_offsets, (std::vector<int32_t>{0, 0, 3, 3}));
  ASSERT_THAT(result.top_tokens, SizeIs(3));
  EXPECT_EQ(result.top_tokens[0], result.tokens[1]);  // greedy: the first alternative
  EXPECT_EQ(result.top_logprobs[0], result.logprobs[1]);
  EXPECT_LT(result.logprobs[2], 0.0f);
}

TEST(Steps, BlockTablesLongerThanTheStepBlockAreWrittenToo) {
  SessionOptions options;
  options.config.block_size = 1;
  options.config.max_num_seqs = 4;
  options.config.max_num_batched_tokens = 16;
  options.config.max_model_len = 256;
  options.config.has_capture_sizes = false;
  options.num_blocks = 1 + 4 * 256;
  const auto session = started(options);
  const auto reference = started(options);
  // All 1,024 blocks of all slots at once, as a prefix-cache hit would bring them; the step block
  // holds 4 * 4 + 16 + 64.
  ipc::Step step = session->make_step({{0, prompt(9, 0), 0}});
  step.blocks = std::vector<ipc::BlockUpdates>(1);
  for (int slot = 3; slot >= 0; --slot) {
    for (int i = 0; i < 256; ++i) {
      step.blocks[0].slot.push_back(slot);
      step.blocks[0].index.push_back(i);
      step.blocks[0].block.push_back(1 + slot * 256 + i);
    }
  }
  session->runner().submit(step);
  EXPECT_EQ(session->runner().wait().tokens, reference->run({{0, prompt(9, 0), 0}}).tokens);
  EXPECT_EQ(session->runner().read_logits(), reference->runner().read_logits());
  const auto& hosted = session->runner().hosted();
  const auto* at = static_cast<const int32_t*>(
      hosted.context.address(worker::prepare_op(hosted.program).block_table[0]));
  const std::vector<int32_t> table = session->read(at, 4 * 256);
  for (int i = 0; i < 4 * 256; ++i) ASSERT_EQ(table[static_cast<size_t>(i)], 1 + i);
}

TEST(KvCache, DummyWeightsRunToo) {
  SessionOptions options;
  options.config.load_dummy = true;
  const auto session = started(options);
  EXPECT_GE(session->run({{0, prompt(4, 0), 0}}).tokens[0], 0);
}

worker::MemoryAccount memory_of(size_t total, size_t free) {
  worker::MemoryAccount memory;
  memory.total = total;
  memory.free = free;
  return memory;
}

TEST(KvCache, BlocksFollowOverrideBytesShareAndNeed) {
  ipc::WorkerConfig config;
  config.max_num_seqs = 4;
  config.max_model_len = 100;
  config.block_size = 16;  // 7 blocks a request
  config.tensor_parallel_size = 2;
  const auto blocks = [&](size_t free, bool shared) {
    std::vector<ipc::StateGroup> groups = {{.name = "full_attention", .bytes = 1000}};
    EXPECT_TRUE(worker::choose_num_blocks(config, memory_of(1 << 20, free), shared, groups));
    return groups[0].num_blocks;
  };
  EXPECT_EQ(blocks(1 << 20, true), 4 * 7 + 1);     // no more than is of use
  EXPECT_EQ(blocks(8 * 20 * 1000, true), 20);      // a quarter of it, for two ranks
  EXPECT_EQ(blocks(104'857 + 10'500, false), 10);  // 90 % of the device, less what is used
  config.kv_cache_memory_bytes = 9'900;
  EXPECT_EQ(blocks(0, true), 9);
  config.num_gpu_blocks_override = 500;
  EXPECT_EQ(blocks(0, true), 500);
}

// Memory goes to the groups as a request of max_model_len takes it.
TEST(KvCache, GroupsShareTheMemoryByWhatALongRequestNeeds) {
  ipc::WorkerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 16;
  config.max_model_len = 1600;
  config.block_size = 16;
  config.kv_cache_memory_bytes = 220'000;
  // 100 blocks; those of a window of 33 and two chunks of 16 tokens, and one that is cut: 5.
  std::vector<ipc::StateGroup> groups = {
      {.name = "full_attention", .bytes = 1000},
      {.name = "recurrent", .kind = ipc::StateKind::kSlot, .bytes = 77},
      {.name = "sliding_attention", .window = 33, .bytes = 2000}};
  ASSERT_TRUE(worker::choose_num_blocks(config, memory_of(1 << 20, 1 << 20), true, groups));
  EXPECT_EQ(groups[0].num_blocks, 200);
  EXPECT_EQ(groups[1].num_blocks, 0);
  EXPECT_EQ(groups[2].num_blocks, 10);
  const auto fewer = worker::fewer_blocks(config, groups, {200, 0, 10}, 22'000);
  EXPECT_EQ(fewer, (std::vector<int64_t>{179, 0, 8})) << "a tenth less of each";
  EXPECT_TRUE(worker::fewer_blocks(config, groups, {200, 0, 10}, 110'000).empty());
}

TEST(KvCache, TooLittleForOneRequestIsAnErrorWithTheNumbers) {
  ipc::WorkerConfig config;
  config.max_model_len = 100;
  config.block_size = 16;
  config.kv_cache_memory_bytes = 7'999;
  std::vector<ipc::StateGroup> groups = {{.name = "full_attention", .bytes = 1000}};
  const auto blocks = worker::choose_num_blocks(config, memory_of(1 << 20, 1 << 20), true, groups);
  ASSERT_FALSE(blocks.has_value());
  EXPECT_EQ(blocks.error().field, "kv_cache_memory_bytes");
  EXPECT_THAT(blocks.error().message, AllOf(HasSubstr("7 KV blocks"), HasSubstr("100")));
}

TEST(RunnerCreate, BadOptionsNameTheirField) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "names what the host device has";
  const auto error_of = [](auto change) -> std::string {
    SessionOptions options;
    change(options.config);
    try {
      Session session(model().directory(), options);
    } catch (const FatalError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(error_of([](auto& c) { c.dtype = "int8"; }),
              AllOf(HasSubstr("dtype"), HasSubstr("int8")));
  EXPECT_THAT(error_of([](auto& c) { c.kv_cache_dtype = "fp8"; }), HasSubstr("kv_cache_dtype"));
  EXPECT_THAT(error_of([](auto& c) { c.attention_backend = "flash"; }), HasSubstr("host_varlen"));
  EXPECT_THAT(error_of([](auto& c) { c.cudagraph_mode = "ALL"; }), HasSubstr("FULL_DECODE_ONLY"));
  EXPECT_THAT(error_of([](auto& c) { c.cudagraph_capture_sizes = {0}; }),
              HasSubstr("cudagraph_capture_sizes"));
  EXPECT_THAT(error_of([](auto& c) { c.block_size = 0; }), HasSubstr("block_size"));
  EXPECT_THAT(error_of([](auto& c) { c.logprobs_mode = "processed"; }),
              HasSubstr("logprobs_mode \"processed\""));
}

}  // namespace
}  // namespace refrain::tests
