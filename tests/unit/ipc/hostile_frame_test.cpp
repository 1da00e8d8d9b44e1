// Frames cut, flipped, and forged with a valid checksum.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/crc32c.h"
#include "ipc/protocol/limits.h"
#include "tests/unit/ipc/allocation_count.h"
#include "tests/unit/ipc/random_message.h"

namespace refrain::ipc {
namespace {

constexpr size_t kTypeAt = 6;
constexpr size_t kLengthAt = 8;
constexpr size_t kCrcAt = 12;

template <class T>
void put(std::vector<std::byte>& frame, size_t at, T value) {
  std::memcpy(frame.data() + at, &value, sizeof value);
}

// Makes length and checksum right again, as an attacker would.
std::vector<std::byte> forged(std::vector<std::byte> frame) {
  put(frame, kLengthAt, static_cast<uint32_t>(frame.size() - kHeaderBytes));
  const std::span<const std::byte> all(frame);
  put(frame, kCrcAt, crc32c(all.subspan(16), crc32c(all.first(kCrcAt))));
  return frame;
}

std::string error_of(const std::vector<std::byte>& frame) {
  const auto decoded = decode_frame(frame);
  return decoded ? "accepted" : decoded.error().message;
}

TEST(HostileFrame, IsRejectedCutAtEveryByte_R6) {
  std::mt19937_64 random(1);
  for (size_t type = 0; type < kTypes; ++type) {
    const auto frame = frame_of(random_message(type, random, 12));
    for (size_t cut = 0; cut < frame.size(); ++cut)
      ASSERT_FALSE(decode_frame(std::span(frame).first(cut))) << message_name(type) << " " << cut;
  }
}

// The same with a checksum that fits: the bounded archive alone must notice.
TEST(HostileFrame, IsRejectedCutAtEveryByteWithAValidChecksum_R6) {
  std::mt19937_64 random(2);
  for (size_t type = 0; type < kTypes; ++type) {
    const auto frame = frame_of(random_message(type, random, 12));
    for (size_t cut = kHeaderBytes; cut < frame.size(); ++cut)
      ASSERT_FALSE(decode_frame(forged({frame.begin(), frame.begin() + cut})))
          << message_name(type) << " " << cut;
  }
}

TEST(HostileFrame, IsRejectedWithBytesAfterTheLastField_R1) {
  std::mt19937_64 random(3);
  for (size_t type = 0; type < kTypes; ++type) {
    auto frame = frame_of(random_message(type, random, 12));
    frame.push_back(std::byte{0});
    EXPECT_FALSE(decode_frame(frame)) << message_name(type);
    EXPECT_NE(error_of(forged(frame)).find("1 bytes follow the last field"), std::string::npos)
        << error_of(forged(frame));
  }
}

TEST(HostileFrame, HeaderFieldsAreCheckedBeforeAnythingElse_R3) {
  const auto frame = frame_of(Heartbeat{1, 2});
  auto changed = frame;
  put(changed, 0, uint32_t{0});
  EXPECT_NE(error_of(forged(changed)).find("magic"), std::string::npos);
  changed = frame;
  put(changed, 4, static_cast<uint16_t>(kProtocolVersion + 1));
  EXPECT_NE(error_of(forged(changed)).find("protocol version"), std::string::npos);
  for (const size_t type : {size_t{0}, kTypes + 1, size_t{255}}) {
    changed = frame;
    put(changed, kTypeAt, static_cast<uint8_t>(type));
    EXPECT_NE(error_of(forged(changed)).find("unknown type"), std::string::npos) << type;
  }
  changed = frame;
  put(changed, 7, uint8_t{1});
  EXPECT_NE(error_of(forged(changed)).find("flags"), std::string::npos);
  changed = frame;
  put(changed, kLengthAt, uint32_t{1});
  EXPECT_NE(error_of(changed).find("claims 1 bytes"), std::string::npos);
  changed.assign(kHeaderBytes + kMaxPayloadBytes[Message(Heartbeat{}).index()] + 1, std::byte{0});
  std::memcpy(changed.data(), frame.data(), kHeaderBytes);
  EXPECT_NE(error_of(forged(changed)).find("at most"), std::string::npos);
}

TEST(HostileFrame, UnknownEnumsAndFlagsAreRejected_R1) {
  const size_t run = kHeaderBytes + 8 + 1 + 1 + 4;  // after the step's id, two bytes and a count
  auto frame = frame_of(decode_step(1));
  frame[run] = std::byte{2};
  EXPECT_NE(error_of(forged(frame)).find("program is 2"), std::string::npos)
      << error_of(forged(frame));
  frame = frame_of(decode_step(1));
  frame[run + 1] = std::byte{10};
  EXPECT_NE(error_of(forged(frame)).find("mode is 10"), std::string::npos)
      << error_of(forged(frame));
  frame = frame_of(Step{});
  frame[kHeaderBytes + 8] = std::byte{2};  // cascade
  EXPECT_NE(error_of(forged(frame)).find("flag is 2"), std::string::npos)
      << error_of(forged(frame));
  frame = frame_of(Progress{});
  frame[kHeaderBytes] = std::byte{5};
  EXPECT_NE(error_of(forged(frame)).find("phase is 5"), std::string::npos);
}

TEST(HostileFrame, IllFormedTextIsRejected_R1) {
  auto frame = frame_of(Refuse{"abcd"});
  frame.back() = std::byte{0xff};
  EXPECT_NE(error_of(forged(frame)).find("not valid UTF-8"), std::string::npos);
}

TEST(HostileFrame, ArraysThatDoNotFitTogetherAreRejected) {
  Step step = decode_step(2);
  step.runs[0].rows.flags.pop_back();
  EXPECT_NE(error_of(frame_of(step)).find("differ in length"), std::string::npos);
  step = decode_step(2);
  step.runs[0].rows.num_tokens[0] = 2;
  EXPECT_NE(error_of(frame_of(step)).find("add up"), std::string::npos);
  step = decode_step(2);
  step.runs[0].rows.num_tokens = {-1, 3};
  EXPECT_NE(error_of(frame_of(step)).find("fewer than 0"), std::string::npos);
  step = decode_step(32);
  step.blocks[0].block.pop_back();
  EXPECT_NE(error_of(frame_of(step)).find("blocks differ"), std::string::npos);
  StepResult result;
  result.tokens = {1, 2};
  EXPECT_NE(error_of(frame_of(result)).find("without token_offsets"), std::string::npos);
  for (const std::vector<int32_t>& offsets :
       {std::vector<int32_t>{0, 1}, {0, 3, 2}, {1, 2}, {0, 1, 1, 3}}) {
    result.token_offsets = offsets;
    EXPECT_NE(error_of(frame_of(result)).find("number of tokens"), std::string::npos);
  }
  result.token_offsets = {0, 2};
  result.top_offsets = {0, 5, 1};
  EXPECT_NE(error_of(frame_of(result)).find("decrease"), std::string::npos);
  result.top_offsets = {0, 1, 2};
  EXPECT_NE(error_of(frame_of(result)).find("number of top_tokens"), std::string::npos);
}

// Processor time of this thread: what the decoding costs, whatever else the machine does.
double thread_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// The least of some tries: a page fault or an interrupt within one of them is not what the frame
// costs.
double cost_ms(const std::vector<std::byte>& frame) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20 && least > 0.5; ++i) {
    const double start = thread_ms();
    static_cast<void>(decode_frame(frame));
    least = std::min(least, thread_ms() - start);
  }
  return least;
}

// Every four bytes of every type's payload are replaced by 2^k-1 and 2^k: wherever a count lies, it
// is hit. None may cost memory or time; those that land in plain numbers may be accepted.
TEST(HostileFrame, LengthFieldsCostNeitherMemoryNorTime_R6) {
  std::mt19937_64 random(4);
  size_t rejected = 0;
  size_t worst_bytes = 0;
  double worst_ms = 0;
  for (size_t type = 0; type < kTypes; ++type) {
    const auto frame = frame_of(random_message(type, random, 6));
    for (size_t at = kHeaderBytes; at + 4 <= frame.size(); ++at)
      for (int k = 4; k <= 32; ++k)
        for (const uint64_t value : {(uint64_t{1} << k) - 1, uint64_t{1} << k}) {
          auto hostile = frame;
          put(hostile, at, static_cast<uint32_t>(value));
          hostile = forged(std::move(hostile));
          const AllocationCount allocations;
          rejected += !decode_frame(hostile).has_value();
          worst_bytes = std::max(worst_bytes, allocations.bytes());
          worst_ms = std::max(worst_ms, cost_ms(hostile));
        }
  }
  EXPECT_GT(rejected, 1000u);
  EXPECT_LT(worst_bytes, size_t{1} << 20);
  EXPECT_LT(worst_ms, 1.0);
  RecordProperty("worst_bytes", static_cast<int>(worst_bytes));
  RecordProperty("worst_us", static_cast<int>(worst_ms * 1000));
}

size_t accepted_after_flips(size_t frames, uint64_t seed) {
  std::mt19937_64 random(seed);
  size_t accepted = 0;
  std::vector<std::vector<std::byte>> originals;
  for (size_t type = 0; type < kTypes; ++type)
    originals.push_back(frame_of(random_message(type, random, 12)));
  for (size_t i = 0; i < frames; ++i) {
    auto frame = originals[i % originals.size()];
    std::set<size_t> bits;
    const size_t flips = 1 + random() % 8;
    while (bits.size() < flips) bits.insert(random() % (frame.size() * 8));
    for (const size_t bit : bits) frame[bit / 8] ^= std::byte{1} << (bit % 8);
    accepted += decode_frame(frame).has_value();
  }
  return accepted;
}

TEST(HostileFrame, NoneOfAMillionWithFlippedBitsIsAccepted_R6) {
  EXPECT_EQ(accepted_after_flips(1'000'000, 5), 0u);
}

}  // namespace
}  // namespace refrain::ipc
