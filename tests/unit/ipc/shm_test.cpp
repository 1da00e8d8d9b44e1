// Shared segments between threads and processes, and futex waits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <thread>

#include "ipc/shm/futex.h"
#include "ipc/shm/segment.h"

namespace refrain::ipc {
namespace {

using std::chrono::milliseconds;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

std::string unique_name(const char* test) {
  return "refrain-test-" + std::to_string(::getpid()) + "-" + test;
}

bool is_linked(const std::string& name) { return std::filesystem::exists("/dev/shm/" + name); }

TEST(SharedSegment, IsZeroFilledAndSharedBetweenMappings) {
  const auto name = unique_name("shared");
  auto mine = SharedSegment::create(name, 10'000);
  ASSERT_TRUE(mine) << mine.error().message;
  auto* bytes = static_cast<unsigned char*>((*mine)->data());
  EXPECT_TRUE(std::all_of(bytes, bytes + 10'000, [](unsigned char byte) { return byte == 0; }));
  auto other = SharedSegment::open(name, 10'000, 0);
  ASSERT_TRUE(other) << other.error().message;
  bytes[9'999] = 42;
  EXPECT_EQ(static_cast<unsigned char*>((*other)->data())[9'999], 42);
  const auto mode = std::filesystem::status("/dev/shm/" + name).permissions();
  EXPECT_EQ(mode, std::filesystem::perms(0600));
}

TEST(SharedSegment, LeavesNoNameBehind) {
  const auto name = unique_name("name");
  {
    auto mine = SharedSegment::create(name, 4096);
    ASSERT_TRUE(mine);
    EXPECT_TRUE(is_linked(name));
    auto other = SharedSegment::open(name, 4096, 0);
    ASSERT_TRUE(other);
    other->reset();  // only the creator's end removes the name
    EXPECT_TRUE(is_linked(name));
    (*mine)->unlink();
    EXPECT_FALSE(is_linked(name));
    static_cast<char*>((*mine)->data())[0] = 1;  // the mapping stays
    auto successor = SharedSegment::create(name, 4096);
    ASSERT_TRUE(successor);
    mine->reset();
    EXPECT_TRUE(is_linked(name)) << "an unlinked segment removed its successor's name";
  }
  EXPECT_FALSE(is_linked(name));
}

TEST(SharedSegment, ErrorsNameTheSegment) {
  const auto name = unique_name("errors");
  EXPECT_FALSE(SharedSegment::create("a/b", 4096));
  EXPECT_FALSE(SharedSegment::create("", 4096));
  EXPECT_FALSE(SharedSegment::create(std::string(201, 'x'), 4096));
  EXPECT_FALSE(SharedSegment::create(name, 0));
  const auto late = SharedSegment::open(name, 4096, 5);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_NE(late.error().message.find(name), std::string::npos);
  const auto mine = SharedSegment::create(name, 4096);
  ASSERT_TRUE(mine);
  EXPECT_FALSE(SharedSegment::create(name, 4096));
  EXPECT_EQ(SharedSegment::open(name, 8192, 5).error().code, ErrorCode::kInvalidArgument);
  const auto huge = SharedSegment::create(name + "-huge", size_t{1} << 50);
  ASSERT_FALSE(huge);
  EXPECT_NE(huge.error().message.find("does not fit"), std::string::npos) << huge.error().message;
  EXPECT_FALSE(is_linked(name + "-huge"));
}

TEST(SharedSegment, OpenWaitsForTheCreator) {
  const auto name = unique_name("wait");
  Result<std::unique_ptr<SharedSegment>> opened = fail(ErrorCode::kInternal, "not yet");
  std::thread opener([&] { opened = SharedSegment::open(name, 4096, 10'000); });
  const auto mine = SharedSegment::create(name, 4096);
  opener.join();
  ASSERT_TRUE(mine);
  EXPECT_TRUE(opened) << opened.error().message;
}

TEST(Futex, WaitEndsAtTheDeadlineOrOnAChange) {
  std::atomic<uint32_t> word{0};
  const auto start = std::chrono::steady_clock::now();
  while (futex_wait(word, 0, in(milliseconds(20)))) ASSERT_EQ(word, 0u);  // may be spurious
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(20));
  std::thread other([&] {
    word = 1;
    futex_wake_all(word);
  });
  const Deadline deadline = in(std::chrono::seconds(10));
  while (word == 0) ASSERT_TRUE(futex_wait(word, 0, deadline));
  other.join();
  EXPECT_TRUE(futex_wait(word, 0, in(milliseconds(-5)))) << "another value: no deadline counts";
}

}  // namespace
}  // namespace refrain::ipc
