// Device memory of another process: which pieces are mapped and read. The device is a fake over
// this process's memory; taking descriptors of a process is real.

#include "worker/transfer/device_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "tests/unit/transfer/looks.h"
#include "tests/unit/transfer/shards.h"
#include "worker/transfer/puller.h"

namespace refrain::worker {
namespace {

UniqueFd memory_file() { return UniqueFd(memfd_create("piece", MFD_CLOEXEC)); }

ino_t file_of(const UniqueFd& descriptor) {
  struct stat info {};
  return fstat(descriptor.get(), &info) == 0 ? info.st_ino : 0;
}

class Mapped final : public MappedMemory {
 public:
  Mapped(std::byte* data, int& count) : data_(data), count_(count) { ++count_; }
  ~Mapped() override { --count_; }
  std::byte* data() const override { return data_; }

 private:
  std::byte* data_;
  int& count_;
};

// Maps what has been given out at the address that it has.
class FakeCopier final : public Copier {
 public:
  bool is_host_memory() const override { return false; }
  void copy(void* to, const void* from, size_t bytes) override {
    bytes_copied += static_cast<int64_t>(bytes);
    std::memcpy(to, from, bytes);
  }
  void finish() override {}
  Result<std::unique_ptr<MappedMemory>> map(std::span<const SharedPiece> pieces) override {
    if (refuses) return fail(ErrorCode::kUnavailable, "no link between the two GPUs");
    for (const SharedPiece& piece : pieces) {
      if (piece.descriptor)
        files.push_back(file_of(piece.descriptor));
      else
        EXPECT_EQ(piece.words, std::vector<uint64_t>{piece.address});
    }
    runs.push_back(pieces.size());
    return std::make_unique<Mapped>(reinterpret_cast<std::byte*>(pieces.front().address), mapped);
  }

  bool refuses = false;
  int mapped = 0;
  int64_t bytes_copied = 0;
  std::vector<size_t> runs;
  std::vector<ino_t> files;
};

class DeviceMemoryTest : public ::testing::Test {
 protected:
  DeviceMemoryTest() {
    transport_ = DeviceMemory::make(words_of, here_.memory, copier_);
    other_ = DeviceMemory::make(words_of, there_.memory, copier_);
  }
  static std::vector<SharedPiece> words_of(const void* begin, size_t bytes) {
    std::vector<SharedPiece> pieces(1);
    pieces[0].address = reinterpret_cast<uintptr_t>(begin);
    pieces[0].bytes = bytes;
    pieces[0].words = {pieces[0].address};
    return pieces;
  }
  // Halves of what is asked for, each a file.
  std::vector<SharedPiece> files_of(const void* begin, size_t bytes) {
    std::vector<SharedPiece> pieces;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    for (const auto& [at, size] :
         {std::pair{size_t{0}, bytes / 2}, {bytes / 2, bytes - bytes / 2}}) {
      pieces.push_back({address + at, size, memory_file(), {}});
      given_.push_back(file_of(pieces.back().descriptor));
    }
    return pieces;
  }
  ipc::KvExport told(const DeviceMemory& of) const {
    ipc::KvExport other;
    other.states = there_.memory.states;
    other.layer_flags = true;
    of.describe(other);
    return other;
  }
  std::string why_not(const ipc::KvExport& other) {
    const Status reached = transport_->import(3, other);
    return reached ? "" : reached.error().message;
  }

  Shard here_{Shape{}, 0, 1, 2}, there_{Shape{}, 0, 1, 1};
  FakeCopier copier_;
  std::vector<ino_t> given_;
  std::unique_ptr<DeviceMemory> transport_, other_;
};

TEST_F(DeviceMemoryTest, BlocksComeAndLayersAsTheirFlagsLetThem) {
  const ipc::KvExport other = told(*other_);
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(std::move(transport_));
  std::vector<ipc::Pulled> pulls;
  Puller puller(here_.memory, 0, std::move(transports),
                [&](const ipc::Pulled& pulled) { pulls.push_back(pulled); });
  puller.take(ipc::KvPeers{1, 7, {other}});
  puller.take(ipc::PullBlocks{5, 1, 7, {{{1, 2}, {3, 4}}, {{5}, {6}}}});
  poll_with_looks(puller);
  ASSERT_FALSE(pulls.empty());
  EXPECT_EQ(pulls.back().error, "");
  EXPECT_TRUE(pulls.back().ended);
  EXPECT_EQ(pulls.back().bytes, copier_.bytes_copied);
  EXPECT_TRUE(here_.holds(0, 3, 3, 1, 1) && here_.holds(0, 3, 4, 1, 2));
  EXPECT_TRUE(here_.holds(3, 1, 6, 1, 5));
  EXPECT_TRUE(here_.holds(0, 3, 2, 2, 2)) << "a block that was not named was written";

  pulls.clear();
  puller.take(ipc::PullBlocks{6, 1, 7, {{{3}, {5}}, {}}, 9});
  there_.pass(0, 9);
  there_.pass(1, 9);
  poll_with_looks(puller);
  EXPECT_EQ(std::ranges::count(pulls, true, &ipc::Pulled::ended), 0);
  EXPECT_TRUE(here_.holds(0, 2, 5, 1, 3));
  EXPECT_TRUE(here_.holds(2, 1, 5, 2, 5)) << "a layer was read before its flag said so";
  there_.pass(2, 9);
  poll_with_looks(puller);
  EXPECT_EQ(std::ranges::count(pulls, true, &ipc::Pulled::ended), 1);
  EXPECT_TRUE(here_.holds(2, 1, 5, 1, 3));
}

TEST_F(DeviceMemoryTest, DescriptorsAreTakenFromTheProcessAndPiecesSideBySideMappedAsOne) {
  other_ = DeviceMemory::make([this](const void* at, size_t bytes) { return files_of(at, bytes); },
                              there_.memory, copier_);
  EXPECT_EQ(why_not(told(*other_)), "");
  EXPECT_FALSE(copier_.files.empty());
  EXPECT_TRUE(std::ranges::is_permutation(copier_.files, given_));
  size_t mapped = 0;
  for (const size_t run : copier_.runs) mapped += run;
  EXPECT_EQ(mapped, given_.size());
  EXPECT_LE(copier_.runs.size(), given_.size() / 2);
  transport_->forget(3);
  EXPECT_EQ(copier_.mapped, 0) << "memory of a group that is gone is still held";
}

TEST_F(DeviceMemoryTest, WhatCannotBeMappedIsReachedByAnotherTransport) {
  const ipc::KvExport good = told(*other_);
  ipc::KvExport other = good;
  other.pieces.clear();
  EXPECT_NE(why_not(other).find("no device memory that can be mapped"), std::string::npos);
  other = good;
  other.realm = "another machine";
  EXPECT_NE(why_not(other).find("another machine"), std::string::npos);
  other = good;
  ++other.process_start;
  EXPECT_NE(why_not(other).find("has ended"), std::string::npos);
  other = good;
  other.pieces.pop_back();
  EXPECT_NE(why_not(other).find("in none of its pieces"), std::string::npos);
  other = good;
  other.states[0].num_blocks *= 2;
  EXPECT_NE(why_not(other).find("in none of its pieces"), std::string::npos);
  other = good;
  other.regions.pop_back();
  EXPECT_NE(why_not(other).find("regions"), std::string::npos);
  copier_.refuses = true;
  EXPECT_NE(why_not(good).find("no link"), std::string::npos);
  EXPECT_EQ(copier_.mapped, 0);
  EXPECT_EQ(DeviceMemory::make([](const void*, size_t) { return std::vector<SharedPiece>(); },
                               here_.memory, copier_),
            nullptr);
}

}  // namespace
}  // namespace refrain::worker
