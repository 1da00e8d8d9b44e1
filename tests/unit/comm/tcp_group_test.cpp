// A group of ranks that share no memory: sums and gathers over tcp are those over shared memory,
// and what ends a group is an error that names the rank. Its faults are played by a peer that
// speaks the frames by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "ipc/transport/rank_sockets.h"
#include "tests/unit/comm/ranks.h"
#include "tests/unit/comm/rendezvous.h"
#include "tests/unit/device/test_launches.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host/host_group.h"
#include "worker/device/digest.h"

namespace refrain::worker {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kLongMs = 20000;
constexpr int kShortMs = 5000;  // to be waited for; longer than a machine stands still

std::unique_ptr<Communicator> join_apart(Device& device, Rendezvous& place, int rank, int size,
                                         int timeout_ms = kLongMs) {
  auto joined = device.create_communicator(place.options(rank, size, timeout_ms));
  if (!joined) throw DeviceError(joined.error().message);
  return std::move(*joined);
}

// Everything that a rank gets from sums, gathers and broadcasts of several sizes.
std::vector<float> results_of(Device& device, Communicator& communicator, int rank, bool recorded) {
  auto stream = device.create_stream();
  constexpr int64_t kCols = 100'000;  // more than a slot holds
  std::vector<float> data(3 * kCols), gathered(size_t(communicator.size()) * 2 * 96);
  std::vector<uint8_t> told(1000, uint8_t(rank));
  const int32_t live = 2;
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = 1.0f / float(1 + i % 977) * float(1 + rank * rank);
  std::vector<float> part(data.begin(), data.begin() + 192);
  if (recorded) stream->begin_capture();
  communicator.all_reduce(*stream, {data.data(), DType::kFloat32, kCols}, kCols, {3, &live});
  communicator.all_gather(*stream, {part.data(), DType::kFloat32, 96}, gathered.data(), 96,
                          {2, nullptr});
  communicator.broadcast(*stream, told.data(), told.size(), communicator.size() - 1);
  if (recorded) {
    auto graph = stream->end_capture();
    stream->launch(*graph);
  }
  data.insert(data.end(), gathered.begin(), gathered.end());
  data.insert(data.end(), told.begin(), told.end());
  return data;
}

std::string digest_of(const std::vector<float>& values) {
  Digest digest;
  digest.add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  return fmt::format("{:x}", digest.value());
}

TEST(TcpGroup, GivesTheBitsOfSharedMemoryAtOnceAndInGraphs) {
  for (const int size : {2, 3}) {
    const std::string token = fresh_token();
    const auto shared = run_ranks(size, [&](int r) {
      auto device = host_device(2);
      auto communicator = device->create_communicator({token, r, size, kLongMs});
      return digest_of(results_of(*device, **communicator, r, false));
    });
    for (const bool recorded : {false, true}) {
      Rendezvous place;
      const auto apart = run_ranks(size, [&](int r) {
        auto device = host_device(2);
        auto communicator = join_apart(*device, place, r, size);
        return digest_of(results_of(*device, *communicator, r, recorded));
      });
      EXPECT_EQ(apart, shared) << size << " ranks, recorded: " << recorded;
    }
  }
}

TEST(TcpGroup, RanksThatShareMemoryMeetThereThoughTheyHaveAddresses) {
  Rendezvous place;
  const auto results = run_ranks(2, [&](int r) {
    GroupOptions options = place.options(r, 2, kLongMs);
    options.meet = [&, r](ipc::RankAddress mine) { return place.meet(r, 2, std::move(mine)); };
    auto group = join_group(options, 1);
    if (!group) return group.error().message;
    return std::string((*group)->shares_memory() ? "shared" : "apart");
  });
  EXPECT_THAT(results, Each(std::string("shared")));
}

TEST(TcpGroup, RanksApartWithoutAnAddressAreAMistakeOfTheirOptions) {
  Rendezvous place;
  const auto results = run_ranks(2, [&](int r) {
    GroupOptions options = place.options(r, 2, kLongMs);
    if (r == 1) options.listen_on.clear();
    const auto group = join_group(options, 1);
    if (group) return std::string("joined");
    return fmt::format("{} {}", exit_code(group.error().code), group.error().message);
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("64 "), HasSubstr("rank 1 has no address"),
                                  HasSubstr("--local-addr"))));
}

TEST(TcpGroup, RanksThatDisagreeAreNamedWithTheirOperations) {
  Rendezvous place;
  const auto results = run_ranks(3, [&](int r) {
    auto device = host_device(1);
    auto stream = device->create_stream();
    auto communicator = join_apart(*device, place, r, 3);
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
                                  HasSubstr("rank 1 runs all_gather of 2 x 8 float32"),
                                  HasSubstr("runs all_reduce of 2 x 8 float32"))));
}

TEST(TcpGroup, ARankThatLeavesIsNamedWithoutWaitingForTheDeadline) {
  Rendezvous place;
  const auto results = run_ranks(2, [&](int r) {
    auto device = host_device(2);
    auto stream = device->create_stream();
    auto communicator = join_apart(*device, place, r, 2, 200'000);
    std::vector<float> data(1000);
    // Who answers the second meeting has been heard in the first.
    communicator->all_reduce(*stream, {data.data(), DType::kFloat32, 8}, 8, {2, nullptr});
    if (r == 1) return std::string("left");
    communicator->all_reduce(*stream, {data.data(), DType::kFloat32, 8}, 8, {4, nullptr});
    return std::string("done");
  });
  EXPECT_THAT(results[0], HasSubstr("rank 1 left the group before all_reduce of 4 x 8 float32"));
}

// Others wait for the slower rank, not for the one that has done its part and left.
TEST(TcpGroup, ARankThatLeavesAfterItsPartStopsNobody) {
  Rendezvous place;
  const auto results = run_ranks(3, [&](int r) {
    auto group = join_group(place.options(r, 3, kLongMs), 1);
    if (!group) return group.error().message;
    (*group)->meet({});
    if (r == 1) return std::string("done");
    if (r == 2) {
      while ((*group)->find_missing().empty()) std::this_thread::yield();
    }
    return std::string("done");
  });
  EXPECT_THAT(results, Each(std::string("done")));
}

TEST(TcpGroup, AKilledRankEndsTheExchangeOfAllOthersBeforeTheDeadline_I8) {
  Rendezvous place;
  const auto results = run_ranks(3, [&](int r) {
    auto device = host_device(1);
    auto communicator = join_apart(*device, place, r, 3, 200'000);
    for (int i = 0; i < 100; ++i) communicator->barrier();
    if (r == 1) kill(getpid(), SIGKILL);
    communicator->barrier();
    return std::string("done");
  });
  for (const size_t r : {0u, 2u}) {
    EXPECT_THAT(results[r], AllOf(HasSubstr("rank 1 (tcp://127.0.0.1:"), HasSubstr("is gone")));
  }
  EXPECT_EQ(results[1], "killed by signal 9");
}

TEST(TcpGroup, ARankThatDoesNotComeIsNamedByTheDeadline) {
  Rendezvous place;
  const auto results = run_ranks(2, [&](int r) {
    auto group = join_group(place.options(r, 2, r == 0 ? kShortMs : kLongMs), 1);
    if (!group) return group.error().message;
    if (r == 1) {  // stays until the other one has given up
      while ((*group)->find_missing().empty()) std::this_thread::sleep_for(milliseconds(1));
      return std::string("stayed away");
    }
    (*group)->meet({});
    return std::string("done");
  });
  EXPECT_THAT(results[0], AllOf(HasSubstr("rank 1 (tcp://127.0.0.1:"),
                                HasSubstr("did not come to barrier"), HasSubstr("within 5000 ms")));
  EXPECT_EQ(results[1], "stayed away");
}

TEST(TcpGroup, JoiningNamesARankThatNeverConnects) {
  auto elsewhere = ipc::RankSockets::listen("tcp://127.0.0.1:*", 1000);
  ASSERT_TRUE(elsewhere) << elsewhere.error().message;
  GroupOptions options{"nobody", 0, 2, 300};
  options.listen_on = "tcp://127.0.0.1:*";
  options.meet = [&](ipc::RankAddress mine) -> Result<std::vector<ipc::RankAddress>> {
    mine.memory = "";
    return std::vector<ipc::RankAddress>{mine, {"", (*elsewhere)->address(), (*elsewhere)->key()}};
  };
  const auto group = join_group(options, 1);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(group.error().message,
              AllOf(HasSubstr("rank 1 (" + (*elsewhere)->address()), HasSubstr("within 300 ms")));
}

// Rank 1 of a group of two, whose frames a test writes by hand.
class TcpFrames : public testing::Test {
 protected:
  struct Head {
    uint32_t magic = 0x74726772, kind = 1, sequence = 1, collective = 3, dtype = 5;
    int32_t root = -1;
    uint64_t rows = 0, cols = 0;
  };
  void SetUp() override {
    auto listening = ipc::RankSockets::listen("tcp://127.0.0.1:*", 1 << 20);
    ASSERT_TRUE(listening) << listening.error().message;
    peer_ = std::move(*listening);
  }
  // What rank 0 says of a barrier and then a sum of 2 x 8 floats, when rank 1 sends this.
  std::string outcome(const Head& head, size_t body_bytes) {
    std::jthread answers;
    GroupOptions options{"frames", 0, 2, kLongMs};
    options.listen_on = "tcp://127.0.0.1:*";
    options.meet = [&](ipc::RankAddress mine) -> Result<std::vector<ipc::RankAddress>> {
      mine.memory = "";
      const std::vector<ipc::RankAddress> all = {mine, {"", peer_->address(), peer_->key()}};
      REFRAIN_RETURN_IF_ERROR(peer_->connect(all, 1));
      send({}, 0);
      send(head, body_bytes);
      answers = std::jthread([&](const std::stop_token& stop) {  // its part of the handshakes
        while (!stop.stop_requested()) peer_->receive(milliseconds(10));
      });
      return all;
    };
    auto group = join_group(options, 1);
    if (!group) return group.error().message;
    try {
      (*group)->meet({Collective::kAllReduce, DType::kFloat32, -1, 2, 8});
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "met";
  }

 private:
  void send(const Head& head, size_t body_bytes) {
    const std::vector<std::byte> body(body_bytes);
    ASSERT_TRUE(peer_->send(0, std::as_bytes(std::span(&head, 1)), body));
  }
  std::unique_ptr<ipc::RankSockets> peer_;
};

constexpr uint64_t kHuge = uint64_t{1} << 62;

TEST_F(TcpFrames, AWholeOneIsMet) {
  EXPECT_EQ(outcome({.sequence = 2, .collective = 0, .dtype = 0, .rows = 2, .cols = 8}, 64), "met");
}

TEST_F(TcpFrames, ALengthThatDoesNotFitWhatItSaysIsRefused) {
  EXPECT_THAT(outcome({.sequence = 2, .collective = 0, .dtype = 0, .rows = 2, .cols = 8}, 60),
              HasSubstr("sent 60 bytes for all_reduce of 2 x 8 float32"));
}

TEST_F(TcpFrames, MoreThanASlotIsRefused) {
  EXPECT_THAT(
      outcome({.sequence = 2, .collective = 0, .dtype = 0, .rows = 1, .cols = 65537}, 65537 * 4),
      HasSubstr("sent 262148 bytes for"));
}

TEST_F(TcpFrames, SizesThatOverflowAreRefused) {
  EXPECT_THAT(outcome({.sequence = 2, .collective = 0, .dtype = 0, .rows = kHuge, .cols = 4}, 0),
              HasSubstr("sent 0 bytes for"));
}

TEST_F(TcpFrames, AnExchangeTwiceOrTooEarlyIsRefused) {
  EXPECT_THAT(outcome({.sequence = 1}, 0), HasSubstr("sent exchange 1 after 1"));
}

TEST_F(TcpFrames, AnExchangeTooEarlyIsRefused) {
  EXPECT_THAT(outcome({.sequence = 3}, 0), HasSubstr("sent exchange 3 after 1"));
}

TEST_F(TcpFrames, WhatIsNoFrameOfAGroupIsRefused) {
  EXPECT_THAT(outcome({.magic = 7, .sequence = 2}, 0), HasSubstr("none of a group's"));
}

TEST_F(TcpFrames, KindsAndTypesThatAreNotThereAreRefused) {
  EXPECT_THAT(outcome({.sequence = 2, .collective = 5}, 0), HasSubstr("none of a group's"));
}

TEST_F(TcpFrames, ARankThatGaveUpSaysWhy) {
  EXPECT_THAT(outcome({.kind = 3}, 10), HasSubstr("rank 1 gave up: "));
}

}  // namespace
}  // namespace refrain::worker
