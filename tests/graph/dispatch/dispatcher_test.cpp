// CG-11 … CG-15: the worked tables, lookup order, restrictions; properties of dispatch.

#include "worker/dispatch/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

using ::testing::ElementsAre;

CudagraphConfig config_of(const char* mode, std::vector<int32_t> sizes, int32_t seqs, int32_t q) {
  CudagraphOptions o;
  o.mode = mode;
  o.capture_sizes = std::move(sizes);
  o.max_num_seqs = seqs;
  o.num_speculative_tokens = q - 1;
  o.max_num_batched_tokens = 8192;
  return *resolve_cudagraph_config(o, {}, true);
}

CudagraphDispatcher captured(CudagraphConfig config) {
  CudagraphDispatcher dispatcher(std::move(config));
  dispatcher.set_captured();
  return dispatcher;
}

BatchShape decodes(int32_t reqs, int32_t q = 1) { return {reqs * q, reqs, true}; }
BatchShape mixed(int32_t tokens, int32_t reqs) { return {tokens, reqs, false}; }

std::string text(const Dispatch& d) {
  return fmt::format("{} {}{}", ipc::to_string(d.mode), d.key.num_tokens,
                     d.key.uniform ? " uniform" : "");
}

TEST(Dispatcher, CG12WorkedTable) {
  BatchShape cascade = decodes(3);
  cascade.cascade = true;
  const BatchShape batches[] = {decodes(1),  decodes(3),   decodes(9),
                                mixed(5, 2), mixed(17, 2), cascade};
  const std::vector<std::pair<const char*, std::vector<std::string>>> columns = {
      {"PIECEWISE",
       {"PIECEWISE 1", "PIECEWISE 4", "PIECEWISE 12", "PIECEWISE 8", "NONE 17", "PIECEWISE 4"}},
      {"FULL", {"FULL 1", "FULL 4", "FULL 12", "FULL 8", "NONE 17", "NONE 3"}},
      {"FULL_DECODE_ONLY",
       {"FULL 1 uniform", "FULL 4 uniform", "FULL 12 uniform", "NONE 5", "NONE 17", "NONE 3"}},
      {"FULL_AND_PIECEWISE",
       {"FULL 1 uniform", "FULL 4 uniform", "FULL 12 uniform", "PIECEWISE 8", "NONE 17",
        "PIECEWISE 4"}},
  };
  for (const auto& [mode, expected] : columns) {
    const auto dispatcher = captured(config_of(mode, {1, 2, 4, 8, 16}, 12, 1));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(text(dispatcher.dispatch(batches[i])), expected[i]) << mode << " row " << i;
    }
  }
}

TEST(Dispatcher, CG9WorkedExampleWithThreeTokensADecode) {
  const auto dispatcher = captured(config_of("FULL_AND_PIECEWISE", {1, 2, 4, 8, 16, 24}, 8, 3));
  const auto key = [](int32_t tokens) { return BatchDescriptor{tokens, tokens / 3, true, false}; };
  EXPECT_THAT(dispatcher.keys(RuntimeMode::kFull),
              ElementsAre(key(24), key(18), key(9), key(6), key(3)));
  EXPECT_EQ(text(dispatcher.dispatch(decodes(4, 3))), "FULL 18 uniform");
  EXPECT_EQ(dispatcher.dispatch(decodes(4, 3)).key.num_reqs, 6);
  EXPECT_EQ(text(dispatcher.dispatch(mixed(12, 5))), "PIECEWISE 16");
}

TEST(Dispatcher, CG11MixedKeysHoldAtMostMaxNumSeqsRequests) {
  const auto dispatcher = captured(config_of("FULL", {1, 4, 16}, 12, 1));
  EXPECT_THAT(dispatcher.keys(RuntimeMode::kFull),
              ElementsAre(BatchDescriptor{16, 12}, BatchDescriptor{12, 12}, BatchDescriptor{4, 4},
                          BatchDescriptor{1, 1}));
  EXPECT_TRUE(dispatcher.keys(RuntimeMode::kPiecewise).empty());
}

TEST(Dispatcher, CG11PiecewiseKeepsTheBatchsOwnRequests) {
  const auto dispatcher = captured(config_of("PIECEWISE", {1, 4, 16}, 3, 1));
  EXPECT_EQ(dispatcher.dispatch(mixed(9, 7)).key, (BatchDescriptor{16, 7}));
}

TEST(Dispatcher, CG12NotUniformNeverRunsAUniformGraph) {
  const auto dispatcher = captured(config_of("FULL_DECODE_ONLY", {1, 2, 4}, 4, 1));
  EXPECT_EQ(dispatcher.dispatch(mixed(3, 3)).mode, RuntimeMode::kNone);
}

TEST(Dispatcher, CG13AllowedModesRestrict) {
  const auto dispatcher = captured(config_of("FULL_AND_PIECEWISE", {1, 2, 4}, 4, 1));
  BatchShape batch = decodes(3);
  batch.allowed_modes = 1 << static_cast<int>(RuntimeMode::kNone);
  EXPECT_EQ(text(dispatcher.dispatch(batch)), "NONE 3");
  batch.allowed_modes |= 1 << static_cast<int>(RuntimeMode::kPiecewise);
  EXPECT_EQ(text(dispatcher.dispatch(batch)), "PIECEWISE 4");
}

TEST(Dispatcher, CG13NothingCapturedYetIsNone) {
  CudagraphDispatcher dispatcher(config_of("FULL", {1, 2, 4}, 4, 1));
  EXPECT_EQ(text(dispatcher.dispatch(decodes(3))), "NONE 3");
  dispatcher.set_captured();
  EXPECT_EQ(text(dispatcher.dispatch(decodes(3))), "FULL 4");
}

TEST(Dispatcher, CG13NoTokensIsNone) {
  const auto dispatcher = captured(config_of("FULL", {1, 2, 4}, 4, 1));
  EXPECT_EQ(text(dispatcher.dispatch(mixed(0, 0))), "NONE 0");
}

TEST(Dispatcher, CG14DisablePaddingNeedsTheExactSize) {
  CudagraphConfig config = config_of("FULL_AND_PIECEWISE", {1, 2, 4}, 4, 1);
  config.disable_padding = true;
  const auto dispatcher = captured(config);
  EXPECT_EQ(text(dispatcher.dispatch(decodes(3))), "NONE 3");
  EXPECT_EQ(text(dispatcher.dispatch(decodes(4))), "FULL 4 uniform");
  EXPECT_EQ(text(dispatcher.dispatch(mixed(2, 1))), "PIECEWISE 2");
}

TEST(Dispatcher, CG14PaddingRatioBoundsPiecewiseOnly) {
  CudagraphConfig config = config_of("FULL_AND_PIECEWISE", {1, 16}, 16, 1);
  config.max_padding_ratio = 2.0;
  const auto dispatcher = captured(config);
  EXPECT_EQ(text(dispatcher.dispatch(mixed(7, 2))), "NONE 7");
  EXPECT_EQ(text(dispatcher.dispatch(mixed(8, 2))), "PIECEWISE 16");
  EXPECT_EQ(text(dispatcher.dispatch(decodes(3))), "FULL 16 uniform");
}

TEST(Dispatcher, CG15AdaptersDoubleTheKeysUnlessNotSpecialised) {
  CudagraphConfig config = config_of("FULL", {2, 4}, 4, 1);
  config.lora = true;
  BatchShape with = decodes(3);
  with.has_lora = true;
  const auto both = captured(config);
  EXPECT_EQ(both.keys(RuntimeMode::kFull).size(), 4u);
  EXPECT_TRUE(both.dispatch(with).key.has_lora);
  EXPECT_FALSE(both.dispatch(decodes(3)).key.has_lora);
  config.specialize_lora = false;
  const auto one = captured(config);
  EXPECT_EQ(one.keys(RuntimeMode::kFull).size(), 2u);
  EXPECT_TRUE(one.dispatch(decodes(3)).key.has_lora);
}

TEST(Dispatcher, CG25DroppedKeysNeverMatchAndOthersKeepTheirId) {
  auto dispatcher = captured(config_of("FULL_AND_PIECEWISE", {1, 2, 4, 8}, 8, 1));
  EXPECT_EQ(dispatcher.dispatch(decodes(3)).id, 1);
  dispatcher.drop(RuntimeMode::kFull, 1);
  EXPECT_EQ(text(dispatcher.dispatch(decodes(3))), "FULL 8 uniform");
  dispatcher.drop(RuntimeMode::kFull, 0);
  EXPECT_EQ(text(dispatcher.dispatch(decodes(3))), "PIECEWISE 4");
  EXPECT_EQ(dispatcher.dispatch(decodes(2)).id, 2);
  EXPECT_THROW(dispatcher.drop(RuntimeMode::kFull, 0), FatalError);
  EXPECT_EQ(dispatcher.mode_in_force(), CudagraphMode::kFullAndPiecewise);
  dispatcher.drop(RuntimeMode::kFull, 2);
  dispatcher.drop(RuntimeMode::kFull, 3);
  EXPECT_EQ(dispatcher.mode_in_force(), CudagraphMode::kPiecewise);
}

// ---- properties

struct AnyCase {
  CudagraphConfig config;
  BatchShape batch;
};

AnyCase any_case() {
  const char* modes[] = {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"};
  const auto q = *rc::gen::inRange(1, 5);
  const auto seqs = *rc::gen::inRange(1, 40);
  auto sizes =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(1, 200)));
  AnyCase c{config_of(modes[*rc::gen::inRange(0, 5)], std::move(sizes), seqs, q), {}};
  c.config.disable_padding = *rc::gen::inRange(0, 4) == 0;
  const auto reqs = *rc::gen::inRange(1, seqs + 1);
  c.batch = *rc::gen::arbitrary<bool>() ? decodes(reqs, q)
                                        : mixed(reqs + *rc::gen::inRange(0, 150), reqs);
  c.batch.cascade = *rc::gen::inRange(0, 4) == 0;
  c.batch.allowed_modes = static_cast<uint8_t>(*rc::gen::inRange(0, 8));
  return c;
}

bool covers(const CudagraphConfig& config, RuntimeMode mode, const BatchDescriptor& key,
            const BatchShape& batch) {
  if (key.uniform && !batch.uniform) return false;
  if (config.disable_padding && key.num_tokens != batch.num_tokens) return false;
  if (mode == RuntimeMode::kFull && batch.cascade) return false;
  if (((batch.allowed_modes >> static_cast<int>(mode)) & 1) == 0) return false;
  return key.num_tokens >= batch.num_tokens &&
         (mode == RuntimeMode::kPiecewise || key.num_reqs >= batch.num_reqs);
}

TEST(DispatcherProperty, CG12SmallestCoveringKeyOfTheFirstModeThatHasOne) {
  EXPECT_TRUE(rc::check([] {
    const AnyCase c = any_case();
    const auto dispatcher = captured(c.config);
    const Dispatch got = dispatcher.dispatch(c.batch);
    // The plain way: look at every key in lookup order.
    for (RuntimeMode mode : {RuntimeMode::kFull, RuntimeMode::kPiecewise}) {
      int32_t best = 0;
      for (const BatchDescriptor& key : dispatcher.keys(mode)) {
        if (covers(c.config, mode, key, c.batch))
          best = key.num_tokens;  // keys come large to small
      }
      if (best == 0) continue;
      RC_ASSERT(got.mode == mode);
      RC_ASSERT(got.key.num_tokens == best);
      RC_ASSERT(dispatcher.keys(mode)[static_cast<size_t>(got.id)].num_tokens == best);
      return;
    }
    RC_ASSERT(got.mode == RuntimeMode::kNone);
    RC_ASSERT(got.key.num_tokens == c.batch.num_tokens);
    RC_ASSERT(got.key.num_reqs == c.batch.num_reqs);
  }));
}

ipc::StepSize size_of(const BatchShape& batch) {
  return {batch.num_tokens, batch.num_reqs, batch.uniform,
          batch.cascade,    batch.has_lora, batch.allowed_modes};
}

TEST(Dispatcher, CG17ReplicasRunTheLeastModeAndTheLargestKey) {
  const auto together = [](const char* mode, std::vector<BatchShape> batches) {
    const auto dispatcher = captured(config_of(mode, {1, 2, 4, 8, 16}, 12, 1));
    std::vector<ipc::StepSize> sizes;
    for (const BatchShape& batch : batches) sizes.push_back(size_of(batch));
    return text(dispatcher.dispatch_together(sizes));
  };
  const BatchShape idle = mixed(0, 0);
  EXPECT_EQ(together("FULL_AND_PIECEWISE", {decodes(1), decodes(3)}), "FULL 4 uniform");
  EXPECT_EQ(together("FULL_AND_PIECEWISE", {decodes(9), idle}), "FULL 12 uniform");
  EXPECT_EQ(together("FULL_AND_PIECEWISE", {decodes(9), mixed(5, 2)}), "PIECEWISE 12");
  EXPECT_EQ(together("FULL_AND_PIECEWISE", {idle, decodes(2), mixed(13, 1)}), "PIECEWISE 16");
  EXPECT_EQ(together("FULL_AND_PIECEWISE", {decodes(1), mixed(17, 2)}), "NONE 17");
  EXPECT_EQ(together("FULL_DECODE_ONLY", {decodes(1), mixed(5, 2)}), "NONE 5");
  EXPECT_EQ(together("FULL", {decodes(3), mixed(5, 2)}), "FULL 8");
  BatchShape cascade = decodes(2);
  cascade.cascade = true;
  EXPECT_EQ(together("FULL_AND_PIECEWISE", {decodes(3), cascade}), "PIECEWISE 4");
  BatchShape eager = mixed(2, 1);
  eager.allowed_modes = 1;
  EXPECT_EQ(together("FULL", {decodes(3), eager}), "NONE 3");
}

// A size that a replica may not pad to is none of it: all run eagerly.
TEST(Dispatcher, CG17OneReplicaWithoutAKeyMakesAllEager) {
  CudagraphConfig config = config_of("FULL", {1, 2, 4, 8, 16}, 12, 1);
  config.disable_padding = true;
  const auto dispatcher = captured(config);
  EXPECT_EQ(text(dispatcher.dispatch(decodes(4))), "FULL 4");
  const std::vector<ipc::StepSize> sizes = {size_of(decodes(4)), size_of(decodes(3))};
  EXPECT_EQ(text(dispatcher.dispatch_together(sizes)), "NONE 4");
}

TEST(DispatcherProperty, CG17TheCommonKeyHasRoomForAllAndNoHigherModeThanAny) {
  EXPECT_TRUE(rc::check([] {
    const AnyCase c = any_case();
    const auto dispatcher = captured(c.config);
    std::vector<ipc::StepSize> sizes = {size_of(c.batch)};
    for (int more = *rc::gen::inRange(0, 4); more > 0; --more)
      sizes.push_back(size_of(any_case().batch));
    const Dispatch all = dispatcher.dispatch_together(sizes);
    for (const ipc::StepSize& size : sizes) {
      if (size.num_reqs == 0) continue;
      const Dispatch own = dispatcher.dispatch(batch_shape(size, c.config.uniform_query_lens));
      RC_ASSERT(all.mode <= own.mode);
      RC_ASSERT(all.key.num_tokens >= size.num_tokens);
      RC_ASSERT(all.key.num_reqs >= size.num_reqs);
    }
    std::ranges::reverse(sizes);
    const Dispatch reversed = dispatcher.dispatch_together(sizes);
    RC_ASSERT(all.mode == reversed.mode && all.key == reversed.key && all.id == reversed.id);
  }));
}

TEST(DispatcherProperty, CG16PureFunctionOfKeysAndBatch) {
  EXPECT_TRUE(rc::check([] {
    const AnyCase c = any_case();
    const auto one = captured(c.config);
    const auto two = captured(c.config);
    const Dispatch first = one.dispatch(c.batch);
    (void)one.dispatch(decodes(1));
    const Dispatch again = one.dispatch(c.batch);
    const Dispatch other = two.dispatch(c.batch);
    RC_ASSERT(first.mode == again.mode && first.key == again.key && first.id == again.id);
    RC_ASSERT(first.mode == other.mode && first.key == other.key && first.id == other.id);
  }));
}

TEST(DispatcherProperty, CG9DecodeKeysAreMultiplesWithinTheLimits) {
  EXPECT_TRUE(rc::check([] {
    const AnyCase c = any_case();
    const auto dispatcher = captured(c.config);
    for (const BatchDescriptor& key : dispatcher.keys(RuntimeMode::kFull)) {
      if (!key.uniform) continue;
      RC_ASSERT(key.num_tokens == key.num_reqs * c.config.uniform_query_len());
      RC_ASSERT(key.num_reqs <= c.config.max_num_seqs);
      RC_ASSERT(key.num_tokens <= c.config.capture_sizes.back());
    }
  }));
}

TEST(Dispatcher, CG35EachQueryLengthHasItsOwnKeys) {
  CudagraphOptions options;
  options.mode = "FULL_AND_PIECEWISE";
  options.capture_sizes = std::vector<int32_t>{1, 2, 4, 8, 16};
  options.max_num_seqs = 4;
  options.num_speculative_tokens = 3;
  options.uniform_query_lens = {1, 4};
  const auto dispatcher = captured(*resolve_cudagraph_config(options, {}, true));
  const Dispatch one = dispatcher.dispatch(decodes(3)), four = dispatcher.dispatch(decodes(3, 4));
  EXPECT_EQ(one.key, (BatchDescriptor{4, 4, true, false}));
  EXPECT_EQ(four.key, (BatchDescriptor{16, 4, true, false}));
  EXPECT_EQ(dispatcher.dispatch(decodes(1, 4)).key, (BatchDescriptor{4, 1, true, false}));
  EXPECT_EQ(text(dispatcher.dispatch(decodes(2, 3))), "PIECEWISE 8") << "no keys for 3";
  std::vector<int32_t> ids;
  for (const BatchDescriptor& key : dispatcher.keys(RuntimeMode::kFull))
    ids.push_back(dispatcher.dispatch({key.num_tokens, key.num_reqs, true}).id);
  std::vector<int32_t> places(ids.size());
  std::iota(places.begin(), places.end(), 0);
  EXPECT_EQ(ids, places);
}

// ---- hidden states

using enum ipc::CaptureHiddenMode;
constexpr ipc::CaptureHiddenMode kHiddenModes[] = {kNull, kLast, kFull};

TEST(Dispatcher, CG35EveryKeySaysWhichHiddenStatesItLeavesAndOneThatLeavesTooFewIsAnError) {
  for (const auto leaves : kHiddenModes) {
    CudagraphConfig config = config_of("FULL_AND_PIECEWISE", {1, 2, 4}, 4, 1);
    config.capture_hidden_mode = leaves;
    CudagraphDispatcher dispatcher(config);
    EXPECT_EQ(dispatcher.dispatch(decodes(3)).key.hidden, leaves) << "nothing captured yet";
    dispatcher.set_captured();
    for (const RuntimeMode mode : {RuntimeMode::kFull, RuntimeMode::kPiecewise})
      for (const BatchDescriptor& key : dispatcher.keys(mode)) EXPECT_EQ(key.hidden, leaves);
    for (const auto reads : kHiddenModes) {
      for (BatchShape batch : {decodes(3), mixed(3, 2), mixed(99, 2)}) {
        batch.hidden = reads;
        if (reads <= leaves) {
          EXPECT_EQ(dispatcher.dispatch(batch).key.hidden, leaves)
              << text(dispatcher.dispatch(batch));
        } else {
          EXPECT_THROW(dispatcher.dispatch(batch), FatalError);
        }
      }
    }
  }
}

TEST(Dispatcher, CG35TheConfigurationSaysWhichHiddenStatesKeysLeave) {
  const auto of = [](const auto& change) {
    ipc::WorkerConfig config;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 64;
    change(config);
    const auto resolved = resolve_cudagraph_config(cudagraph_options(config), {}, true);
    return resolved->capture_hidden_mode;
  };
  EXPECT_EQ(of([](auto&) {}), kNull);
  EXPECT_EQ(of([](auto& c) { c.draft_model = true; }), kNull) << "it reads tokens alone";
  EXPECT_EQ(of([](auto& c) { c.draft_head = ipc::DraftHead::kEagle; }), kFull);
  EXPECT_EQ(of([](auto& c) { c.draft_head = ipc::DraftHead::kEagle3; }), kFull);
  EXPECT_EQ(of([](auto& c) { c.pooling = "LAST"; }), kLast);
  EXPECT_EQ(of([](auto& c) { c.pooling = "MEAN"; }), kFull);
  EXPECT_EQ(of([](auto& c) { c.pooling = "CLS"; }), kFull);
}

// ---- what a step is

}  // namespace
}  // namespace refrain::worker
