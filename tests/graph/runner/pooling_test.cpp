// A model that pools gives each prompt one vector: in captured steps too (CG-13, CG-27), the same
// whatever its chunks, the rows beside it, the padding and the ranks; wrong numbers end a request
//
#include <gmock/gmock.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "runtime/base/check.h"
#include "tests/graph/runner/session.h"

namespace refrain::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr int kPromptTokens = 23;

SessionOptions pooling(const std::string& type, const std::string& mode = "FULL_AND_PIECEWISE") {
  SessionOptions options = with_mode(mode);
  options.config.pooling = type;
  return options;
}

// A step of chunks that end their prompts or, where `ends` says so, do not.
ipc::StepResult run_chunks(Session& session, const std::vector<Row>& rows,
                           const std::vector<bool>& ends) {
  ipc::Step step = session.make_step(rows);
  for (size_t i = 0; i < ends.size(); ++i)
    if (!ends[i]) step.runs.front().rows.flags[i] = 0;
  session.runner().submit(step);
  return session.runner().wait();
}

std::vector<float> pool_alone(Session& session, const std::vector<TokenId>& tokens) {
  return session.run({{0, tokens, 0}}).pooled;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
}

std::vector<TokenId> first_of(const std::vector<TokenId>& tokens, int count) {
  return {tokens.begin(), tokens.begin() + count};
}

TEST(Pooling, TheMeanIsThatOfTheLastStatesOfEachBeginningAndClsIsTheFirst) {
  const std::vector<TokenId> tokens = prompt(kPromptTokens, 1);
  const auto last = started(pooling("LAST"));
  std::vector<double> sum;
  for (int count = 1; count <= kPromptTokens; ++count) {
    const std::vector<float> state = pool_alone(*last, first_of(tokens, count));
    ASSERT_THAT(state, SizeIs(64));
    if (count == 1) expect_near(pool_alone(*started(pooling("CLS")), tokens), state);
    sum.resize(state.size());
    for (size_t i = 0; i < state.size(); ++i) sum[i] += state[i];
  }
  std::vector<float> mean;
  for (const double x : sum) mean.push_back(static_cast<float>(x / kPromptTokens));
  expect_near(pool_alone(*started(pooling("MEAN")), tokens), mean);
}

TEST(Pooling, ChunksAndRowsBesideAPromptChangeNothing) {
  const std::vector<TokenId> tokens = prompt(kPromptTokens, 1), other = prompt(9, 2);
  for (const char* type : {"LAST", "MEAN", "CLS"}) {
    const auto session = started(pooling(type));
    const std::vector<float> alone = pool_alone(*session, tokens);
    const std::vector<float> other_alone = pool_alone(*session, other);
    const auto chunk = [&](int from, int to) {
      return Row{2, {tokens.begin() + from, tokens.begin() + to}, from};
    };
    ipc::StepResult first = run_chunks(*session, {chunk(0, 7), {4, other, 0}}, {false, true});
    EXPECT_THAT(first.token_offsets, ElementsAre(0, 0, 1));
    expect_near(first.pooled, other_alone);
    EXPECT_THAT(run_chunks(*session, {chunk(7, 22)}, {false}).pooled, IsEmpty());
    // The slot of another prompt is taken meanwhile, and begins anew.
    ipc::StepResult both = run_chunks(*session, {chunk(22, 23), {4, tokens, 0}}, {true, true});
    EXPECT_THAT(both.tokens, ElementsAre(0, 0));
    ASSERT_THAT(both.pooled, SizeIs(128));
    expect_near({both.pooled.begin(), both.pooled.begin() + 64}, alone);
    expect_near({both.pooled.begin() + 64, both.pooled.end()}, alone);
    // A prompt that was preempted begins again, in a slot that has the sum of another one's chunks.
    run_chunks(*session, {{2, first_of(other, 5), 0}}, {false});
    run_chunks(*session, {chunk(0, 7)}, {false});
    expect_near(run_chunks(*session, {chunk(7, 23)}, {true}).pooled, alone);
  }
}

TEST(Pooling, CG27EveryModeGivesTheSameVectorsAndPaddingIsInNone) {
  const std::vector<TokenId> tokens = prompt(13, 3);  // padded to 16
  for (const char* type : {"LAST", "MEAN", "CLS"}) {
    const std::vector<float> eager = pool_alone(*started(pooling(type, "NONE")), tokens);
    for (const char* mode : {"PIECEWISE", "FULL"}) {
      SessionOptions options = pooling(type, mode);
      options.poison_padding = true;
      const auto session = started(options);
      const ipc::StepResult result = session->run({{0, tokens, 0}, {1, {5}, 0}});
      EXPECT_STREQ(ipc::to_string(result.mode), mode) << type;
      EXPECT_EQ(result.key_tokens, 16);
      EXPECT_EQ(result.key_hidden, type == std::string("LAST") ? ipc::CaptureHiddenMode::kLast
                                                               : ipc::CaptureHiddenMode::kFull)
          << "CG-35";
      expect_near({result.pooled.begin(), result.pooled.begin() + 64}, eager);
    }
  }
}

TEST(Pooling, RanksGiveWhatOneGives) {
  if (SessionOptions{}.device != "host") GTEST_SKIP() << "ranks are processes there";
  const std::vector<TokenId> tokens = prompt(kPromptTokens, 4);
  const std::vector<float> one = pool_alone(*started(pooling("MEAN")), tokens);
  SessionOptions options = pooling("MEAN");
  options.config.tensor_parallel_size = 2;
  options.token = fmt::format("pooling-{}", getpid());
  std::vector<std::vector<float>> got(2);
  std::vector<std::exception_ptr> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        SessionOptions mine = options;
        mine.rank = rank;
        got[static_cast<size_t>(rank)] = pool_alone(*started(mine), tokens);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  expect_near(got[0], one);
  EXPECT_EQ(got[0], got[1]);
}

TEST(Pooling, R22AVectorThatIsNoNumbersIsNoTokenAndOthersGoOn) {
  SessionOptions options = pooling("LAST");
  const auto session = started(options);
  const std::vector<TokenId> tokens = prompt(9, 5);
  const std::vector<float> good = pool_alone(*session, tokens);
  ASSERT_THAT(good, SizeIs(64));
  // The first prompt reads keys that are no numbers: its first block is poisoned behind its back.
  ipc::StepResult first = run_chunks(*session, {{1, first_of(tokens, 8), 0}}, {false});
  const worker::KvCache& cache = session->runner().kv_cache();
  const worker::Filler nan(session->device(), 0xff);
  const auto stream = session->device().create_stream();
  const auto& layer = cache.layers().front();
  const auto bytes = static_cast<size_t>(layer.block_bytes(options.config.block_size));
  const size_t block = 1 + 1 * 8;  // of slot 1 (Session::make_step)
  nan.fill(*stream, static_cast<std::byte*>(cache.address(layer)) + block * bytes, bytes);
  stream->synchronize();
  const ipc::StepResult result =
      run_chunks(*session, {{1, {tokens[8]}, 8}, {2, tokens, 0}}, {true, true});
  EXPECT_THAT(result.tokens, ElementsAre(ipc::kNoFiniteLogit, 0));
  expect_near({result.pooled.begin() + 64, result.pooled.end()}, good);
}

TEST(Pooling, AStepThatWouldSampleIsAMistake) {
  const auto session = started(pooling("LAST"));
  session->setup().bias_tokens = {1};
  session->setup().bias_values = {1.0f};
  EXPECT_THAT(
      [&] {
        session->run({{0, prompt(4, 1), 0}});
      },
      ThrowsMessage<FatalError>(HasSubstr("samples no tokens")));
}

}  // namespace
}  // namespace refrain::tests
