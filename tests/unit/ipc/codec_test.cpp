// Round trips, checksums and the order gate.
#include "ipc/protocol/codec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "ipc/protocol/crc32c.h"
#include "ipc/protocol/limits.h"
#include "ipc/protocol/utf8.h"
#include "runtime/base/check.h"
#include "tests/unit/ipc/random_message.h"

namespace refrain::ipc {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Frames hold every field, so equal frames are equal messages.
RC_GTEST_PROP(Codec, RoundTripsEveryTypeWithAnyContents_R1, (uint64_t seed)) {
  std::mt19937_64 random(seed);
  for (size_t type = 0; type < kTypes; ++type) {
    const Message message = random_message(type, random, 20);
    const FrameInfo info{random(), random()};
    const auto frame = frame_of(message, info);
    const auto decoded = decode_frame(frame);
    RC_ASSERT(decoded.has_value());
    RC_ASSERT(decoded->message.index() == type);
    RC_ASSERT(decoded->info.epoch == info.epoch);
    RC_ASSERT(decoded->info.sequence == info.sequence);
    RC_ASSERT(frame_of(decoded->message, info) == frame);
  }
}

TEST(Codec, KeepsTheFieldsOfAStepAndTheOrderOfItsRuns_CG39) {
  Step step = decode_step(3);
  step.runs.push_back(
      {ProgramId::kLanguageModel, ForwardMode::kExtend, {{4}, {2}, {0}, {0}, {8, 9}, {}}});
  step.setups.resize(1);
  step.setups[0].slot = 2;
  step.setups[0].temperature = 0.25f;
  step.setups[0].bias_tokens = {5, 6};
  step.setups[0].bias_values = {1.5f, -2.0f};
  const auto decoded = decode_frame(frame_of(step, {7, 9}));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->info.epoch, 7u);
  EXPECT_EQ(decoded->info.sequence, 9u);
  const auto& back = std::get<Step>(decoded->message);
  EXPECT_EQ(back.step, step.step);
  ASSERT_EQ(back.runs.size(), 2u);
  for (size_t run = 0; run < 2; ++run) {
    EXPECT_EQ(back.runs[run].program, ProgramId::kLanguageModel);
    EXPECT_EQ(back.runs[run].mode, step.runs[run].mode);
    EXPECT_EQ(back.runs[run].rows, step.runs[run].rows);
  }
  EXPECT_EQ(back.blocks, step.blocks);
  ASSERT_EQ(back.setups.size(), 1u);
  EXPECT_EQ(back.setups[0].slot, 2);
  EXPECT_EQ(back.setups[0].temperature, 0.25f);
  EXPECT_EQ(back.setups[0].bias_values, step.setups[0].bias_values);
}

// What the scheduler counts with is what goes over the wire.
RC_GTEST_PROP(Codec, AStepTakesTheBytesThatItsPartsSay_R23, (uint64_t seed)) {
  std::mt19937_64 random(seed);
  const Message message = random_message(Message(Step{}).index(), random, 50);
  const auto& step = std::get<Step>(message);
  size_t expected = kEmptyStepBytes + step.runs.size() * kMinRunBytes +
                    static_cast<size_t>(num_rows(step)) * kStepRowBytes +
                    static_cast<size_t>(num_tokens(step)) * kStepTokenBytes +
                    step.blocks.size() * kMinBlockUpdatesBytes +
                    static_cast<size_t>(num_block_updates(step)) * kBlockUpdateBytes;
  for (const SlotSetup& setup : step.setups) expected += bytes_of(setup);
  expected += step.placements.size() * kAdapterPlacementBytes;
  expected += step.together.size() * kStepSizeBytes;
  for (const Run& run : step.runs) expected += run.rows.next_tokens.size() * sizeof(TokenId);
  RC_ASSERT(frame_of(message, {1, 1}).size() == kHeaderBytes + expected);
}

TEST(Codec, KeepsTheFieldsOfAConfiguration) {
  Welcome welcome;
  welcome.config.cudagraph_capture_sizes = {1, 2, 4};
  welcome.config.splitting_ops = {"attention", "moe"};
  welcome.config.collective_timeout_ms = 5;
  welcome.group_token = "g1";
  const auto decoded = decode_frame(frame_of(welcome));
  ASSERT_TRUE(decoded) << decoded.error().message;
  const auto& back = std::get<Welcome>(decoded->message);
  EXPECT_EQ(back.config.cudagraph_capture_sizes, welcome.config.cudagraph_capture_sizes);
  EXPECT_EQ(back.config.splitting_ops, welcome.config.splitting_ops);
  EXPECT_EQ(back.config.collective_timeout_ms, 5);
  EXPECT_EQ(back.group_token, "g1");
}

TEST(Codec, ReusesTheBufferOfTheFrame) {
  std::vector<std::byte> out;
  encode_frame(decode_step(256), {1, 1}, out);
  const auto* storage = out.data();
  const size_t size = out.size();
  encode_frame(decode_step(256), {1, 2}, out);
  EXPECT_EQ(out.data(), storage);
  EXPECT_EQ(out.size(), size);
}

TEST(Codec, CutsAndCleansTextForPeopleButNeverNames) {
  Refuse refuse{std::string(kMaxTextBytes - 1, 'x') + "\xe2\x82\xac"};
  auto decoded = decode_frame(frame_of(refuse));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(std::get<Refuse>(decoded->message).reason, std::string(kMaxTextBytes - 1, 'x'));
  decoded = decode_frame(frame_of(Refuse{"a\xff\xc3z"}));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(std::get<Refuse>(decoded->message).reason, "a??z");
  Hello hello;
  hello.build_id = std::string(kMaxNameBytes + 1, 'b');
  EXPECT_THROW(frame_of(hello), FatalError);
  hello.build_id = "\xff";
  EXPECT_THROW(frame_of(hello), FatalError);
}

TEST(Codec, SenderThatExceedsACapFailsItsOwnCheck) {
  Step step;
  step.blocks.resize(1);
  step.blocks[0].slot.resize(kMaxBlockUpdates + 1);
  EXPECT_THROW(frame_of(step), FatalError);
}

TEST(Crc32c, MatchesPublishedValues) {
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8a9136aau);  // RFC 3720 B.4
  EXPECT_EQ(crc32c(bytes(std::string(32, '\xff'))), 0x62a8ab43u);
}

RC_GTEST_PROP(Crc32c, InstructionAndTablesAgreeInAnyPieces, (uint64_t seed)) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(random() % 4096);
  for (auto& byte : data) byte = static_cast<std::byte>(random());
  const std::span<const std::byte> all(data);
  const size_t cut = random() % (data.size() + 1);
  const uint32_t whole = crc32c(all);
  RC_ASSERT(whole == crc32c_portable(all));
  RC_ASSERT(whole == crc32c(all.subspan(cut), crc32c(all.first(cut))));
}

TEST(Utf8, AcceptsOnlyWellFormedText) {
  for (const char* good : {"", "abc", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_valid_utf8(good)) << good;
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xe2\x82", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"})
    EXPECT_FALSE(is_valid_utf8(bad)) << bad;
}

TEST(FrameGate, TakesFramesInOrderOnce_R3) {
  FrameGate gate(5);
  EXPECT_TRUE(gate.accept({5, 1}));
  EXPECT_FALSE(gate.accept({5, 1}));  // duplicate
  EXPECT_FALSE(gate.accept({4, 2}));  // an older life of the group
  EXPECT_FALSE(gate.accept({6, 2}));  // a life that this end does not know
  EXPECT_TRUE(gate.accept({5, 2}));
  EXPECT_FALSE(gate.accept({5, 4}));  // one was lost or overtaken
  EXPECT_TRUE(gate.accept({5, 3}));
  EXPECT_FALSE(gate.accept({5, 2}));
  EXPECT_FALSE(gate.accept({5, 0}));
  EXPECT_EQ(gate.wrong_epoch(), 2u);
  EXPECT_EQ(gate.duplicates(), 3u);
  EXPECT_EQ(gate.gaps(), 1u);
  EXPECT_EQ(gate.rejected(), 6u);
}

}  // namespace
}  // namespace refrain::ipc
