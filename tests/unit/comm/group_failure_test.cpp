// What ends a group: ranks that disagree, do not come, leave or die. Nothing hangs (R-9's rule on
// the host) and nothing stays in /dev/shm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/unit/comm/ranks.h"
#include "tests/unit/device/test_launches.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host/host_group.h"

namespace refrain::worker {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kLongTimeoutMs = 20'000;
// Of a group in which somebody is missing: to be waited for, and longer than a loaded machine takes
// to start its ranks or stands still.
constexpr int kShortTimeoutMs = 5000;

class GroupFailureTest : public testing::Test {
 protected:
  std::string token_ = fresh_token();
  void TearDown() override { EXPECT_TRUE(segments_of(token_).empty()); }
};

std::unique_ptr<Communicator> join(Device& device, const std::string& token, int rank, int size,
                                   int timeout_ms) {
  auto joined = device.create_communicator({token, rank, size, timeout_ms});
  if (!joined) throw DeviceError(joined.error().message);
  return std::move(*joined);
}

TEST_F(GroupFailureTest, RanksThatDisagreeAreNamedWithTheirOperations) {
  const auto results = run_ranks(3, [&](int r) {
    auto device = host_device(1);
    auto stream = device->create_stream();
    auto communicator = join(*device, token_, r, 3, kLongTimeoutMs);
    std::vector<float> data(1000), out(3000);
    if (r == 1) {
      communicator->all_gather(*stream, {data.data(), DType::kFloat32, 8}, out.data(), 8,
                               {2, nullptr});
    } else {
      communicator->all_reduce(*stream, {data.data(), DType::kFloat32, 8}, 8, {2, nullptr});
    }
    return std::string("done");
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("exception"),
                                  HasSubstr("rank 1 runs all_gather of 2 x "
                                            "8 float32"),
                                  HasSubstr("runs all_reduce of 2 x 8 float32"))));
}

TEST_F(GroupFailureTest, DifferentElementTypesAndLiveRowsAreDisagreements) {
  for (const bool dtypes : {true, false}) {
    const std::string token = fresh_token();
    const auto results = run_ranks(2, [&](int r) {
      auto device = host_device(1);
      auto stream = device->create_stream();
      auto communicator = join(*device, token, r, 2, kLongTimeoutMs);
      std::vector<float> data(1000);
      const int32_t live = dtypes ? 4 : 3 + r;
      const DType dtype = dtypes && r == 1 ? DType::kBFloat16 : DType::kFloat32;
      communicator->all_reduce(*stream, {data.data(), dtype, 8}, 8, {4, &live});
      return std::string("done");
    });
    EXPECT_THAT(results, Each(HasSubstr("ranks disagree"))) << dtypes;
  }
}

TEST_F(GroupFailureTest, AfterAFailureEveryFurtherCollectiveFailsAtOnce) {
  const auto results = run_ranks(2, [&](int r) {
    auto device = host_device(1);
    auto stream = device->create_stream();
    auto communicator = join(*device, token_, r, 2, kLongTimeoutMs);
    std::vector<uint8_t> data(16);
    EXPECT_THROW(communicator->broadcast(*stream, data.data(), 8 + size_t(r), 0), DeviceError);
    communicator->barrier();
    return std::string("done");
  });
  EXPECT_THAT(results, Each(HasSubstr("ranks disagree")));
}

TEST_F(GroupFailureTest, ARankThatDoesNotComeIsNamedByTheDeadline_R9) {
  int given_up[2];
  ASSERT_EQ(pipe(given_up), 0);
  const auto results = run_ranks(3, [&](int r) {
    auto device = host_device(1);
    char one = 0;
    try {
      auto communicator = join(*device, token_, r, 3, kShortTimeoutMs);
      if (r == 2) {  // stays, but never comes to the barrier, until the others have given up
        if (read(given_up[0], &one, 1) != 1 || read(given_up[0], &one, 1) != 1)
          return std::string("no pipe");
        return std::string("stayed away");
      }
      communicator->barrier();
    } catch (const DeviceError&) {
      if (write(given_up[1], &one, 1) != 1) return std::string("no pipe");
      throw;
    }
    return std::string("done");
  });
  close(given_up[0]);
  close(given_up[1]);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(results[size_t(rank)],
                AllOf(HasSubstr("rank 2 (process "), HasSubstr("did not come to barrier"),
                      HasSubstr("within 5000 ms")));
  }
  EXPECT_EQ(results[2], "stayed away");
}

TEST_F(GroupFailureTest, ARankThatLeavesIsNamedWithoutWaitingForTheDeadline) {
  const auto results = run_ranks(2, [&](int r) {
    auto device = host_device(2);
    auto stream = device->create_stream();
    auto communicator = join(*device, token_, r, 2, kLongTimeoutMs);
    if (r == 1) return std::string("left");
    std::vector<float> data(1000);
    communicator->all_reduce(*stream, {data.data(), DType::kFloat32, 8}, 8, {4, nullptr});
    return std::string("done");
  });
  EXPECT_THAT(results[0], HasSubstr("rank 1 left the group before all_reduce of 4 x 8 float32"));
}

TEST_F(GroupFailureTest, AKilledRankIsAnErrorByTheDeadline) {
  const auto results = run_ranks(2, [&](int r) {
    auto device = host_device(1);
    auto communicator = join(*device, token_, r, 2, kLongTimeoutMs);
    for (int i = 0; i < 100; ++i) communicator->barrier();
    if (r == 1) kill(getpid(), SIGKILL);
    communicator->barrier();
    return std::string("done");
  });
  EXPECT_THAT(results[0], AllOf(HasSubstr("rank 1 (process "), HasSubstr("is gone")));
  EXPECT_EQ(results[1], "killed by signal 9");
}

bool has_ended(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  return !std::getline(file, stat) || stat.find(") Z") != std::string::npos;
}

// The first to notice leaves too, with a lower number than the one that died: who comes to look
// later still hears of that one.
TEST_F(GroupFailureTest, TheRankThatWasLostFirstIsNamedByAll_I8) {
  int noticed[2];
  ASSERT_EQ(pipe(noticed), 0);
  const auto results = run_ranks(3, [&](int r) -> std::string {
    auto group = join_group({token_, r, 3, kLongTimeoutMs}, 1);
    if (!group) return group.error().message;
    (*group)->meet({});
    if (r == 2) kill(getpid(), SIGKILL);
    if (r == 0) {
      while ((*group)->find_missing().empty()) std::this_thread::yield();
      const pid_t me = getpid();
      if (write(noticed[1], &me, sizeof me) != sizeof me) return "no pipe";
      kill(me, SIGKILL);
    }
    pid_t first = 0;
    if (read(noticed[0], &first, sizeof first) != sizeof first) return "no pipe";
    while (!has_ended(first)) std::this_thread::yield();
    return (*group)->find_missing();
  });
  close(noticed[0]);
  close(noticed[1]);
  EXPECT_THAT(results[1],
              AllOf(HasSubstr("rank 0 gave up: rank 2 (process "), HasSubstr("is gone")));
}

TEST_F(GroupFailureTest, JoiningNamesTheRanksThatAreMissing) {
  const auto results = run_ranks(2, [&](int r) {
    auto device = host_device(1);
    const auto joined = device->create_communicator({token_, r, 4, kShortTimeoutMs});
    return joined ? std::string("joined") : joined.error().message;
  });
  EXPECT_THAT(results, Each(HasSubstr("rank 2 and 3 has not come within 5000 ms")));
}

TEST_F(GroupFailureTest, JoiningWithoutRankZeroSaysSo) {
  auto device = host_device(1);
  const auto joined = device->create_communicator({token_, 1, 2, 100});
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(joined.error().message, HasSubstr("rank 0 of group"));
}

TEST_F(GroupFailureTest, TwoProcessesCannotBothBeOneRank) {
  const auto results = run_ranks(3, [&](int process) {
    auto device = host_device(1);
    const auto joined =
        device->create_communicator({token_, process == 0 ? 0 : 1, 3, kShortTimeoutMs});
    return joined ? std::string("joined") : joined.error().message;
  });
  EXPECT_THAT(results, testing::Contains(HasSubstr("rank 1 has joined group")));
}

TEST_F(GroupFailureTest, RanksMustAgreeOnTheSizeOfTheGroup) {
  const auto results = run_ranks(2, [&](int r) {
    auto device = host_device(1);
    const auto joined = device->create_communicator({token_, r, 2 + r, kShortTimeoutMs});
    return joined ? std::string("joined") : joined.error().message;
  });
  EXPECT_THAT(results[1], AnyOf(HasSubstr("has 2 ranks, rank 1 says 3"), HasSubstr("bytes")));
}

TEST_F(GroupFailureTest, ImpossibleRanksAreRefused) {
  auto device = host_device(1);
  EXPECT_FALSE(device->create_communicator({token_, 2, 2, 100}).has_value());
  EXPECT_FALSE(device->create_communicator({token_, -1, 1, 100}).has_value());
  EXPECT_FALSE(device->create_communicator({token_, 0, 65, 100}).has_value());
}

}  // namespace
}  // namespace refrain::worker
