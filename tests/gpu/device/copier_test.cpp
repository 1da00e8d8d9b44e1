// Device memory that is given to other processes, mapped here, and copied in pieces of all sizes.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/gpu/device/cuda_device_fixture.h"

namespace refrain::worker {
namespace {

class CopierTest : public CudaDeviceFixture {
 protected:
  std::vector<uint32_t> words_at(const void* from, size_t count) {
    const auto pinned = device_->allocate_pinned(count * sizeof(uint32_t));
    stream_->copy(pinned->data(), from, count * sizeof(uint32_t));
    stream_->synchronize();
    std::vector<uint32_t> words(count);
    std::memcpy(words.data(), pinned->data(), count * sizeof(uint32_t));
    return words;
  }
  // Word i is i.
  void number(void* to, size_t count) {
    const auto pinned = device_->allocate_pinned(count * sizeof(uint32_t));
    auto* words = static_cast<uint32_t*>(pinned->data());
    std::iota(words, words + count, 0u);
    stream_->copy(to, words, count * sizeof(uint32_t));
    stream_->synchronize();
  }
};

TEST_F(CopierTest, SharedMemoryIsMappedAndKeptByTheMapping) {
  auto memory = device_->reserve(80 * kMiB, MemoryTag::kKvCache);
  memory->back(3 * kMiB);
  memory->back(80 * kMiB);
  number(memory->data(), 80 * kMiB / 4);
  std::vector<SharedPiece> pieces = device_->share(memory->data(), 80 * kMiB);
  if (pieces.empty()) GTEST_SKIP() << "the driver gives out no memory here";
  ASSERT_GE(pieces.size(), 2u);
  EXPECT_LE(pieces.size(), 4u);
  EXPECT_EQ(pieces.front().address, reinterpret_cast<uintptr_t>(memory->data()));
  const auto copier = device_->create_copier();
  auto mapped = copier->map(pieces);
  ASSERT_TRUE(mapped.has_value()) << mapped.error().message;
  pieces.clear();
  memory.reset();
  const auto words = words_at((*mapped)->data() + 70 * kMiB, 1000);
  for (size_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], 70 * kMiB / 4 + i);
}

TEST_F(CopierTest, PiecesOfAllSizesAndAlignmentsComeWhole) {
  const auto from = device_->allocate(16 * kMiB, MemoryTag::kOther);
  const auto to = device_->allocate(16 * kMiB, MemoryTag::kOther);
  number(from->data(), 4 * kMiB);
  const auto ones = device_->allocate_pinned(16 * kMiB);
  std::memset(ones->data(), 0xff, ones->bytes());
  stream_->copy(to->data(), ones->data(), ones->bytes());
  stream_->synchronize();
  std::vector<CopyPiece> pieces;
  size_t at = 0;
  for (const size_t bytes : {size_t{16}, size_t{64}, size_t{4}, size_t{8192}, size_t{100},
                             64 * 1024 + 16ul, 300 * 1024 + 48ul, 2 * kMiB, 2 * kMiB + 20}) {
    at = (at + 15) / 16 * 16;
    pieces.push_back({static_cast<std::byte*>(to->data()) + at,
                      static_cast<const std::byte*>(from->data()) + at, bytes});
    at += bytes + 32;  // what lies between is left alone
  }
  const auto copier = device_->create_copier();
  copier->copy_all(pieces);
  copier->finish();
  const auto words = words_at(to->data(), 4 * kMiB);
  std::vector<bool> copied(words.size(), false);
  for (const CopyPiece& piece : pieces) {
    const auto first = static_cast<size_t>(static_cast<std::byte*>(piece.to) -
                                           static_cast<std::byte*>(to->data())) /
                       4;
    for (size_t i = first; i < first + piece.bytes / 4; ++i) copied[i] = true;
  }
  for (size_t i = 0; i < words.size(); ++i)
    ASSERT_EQ(words[i], copied[i] ? i : 0xffffffffu) << "word " << i;
}

// Every piece has rows of its own number of bytes, which three places share, and some lie over the
// border of two pieces of pinned memory.
TEST_F(CopierTest, RowsOfAllSizesAndAlignmentsGoIntoTheirPlace) {
  constexpr size_t kPlaces = 3, kRows = 3000;
  const std::vector<size_t> row_bytes = {16, 32, 8, 24, 4, 2, 6, 5120};
  size_t bytes = 0;
  for (const size_t row : row_bytes) bytes += row * kRows;
  const auto from = device_->allocate_pinned_in_pieces(bytes);
  const auto list = device_->allocate_pinned(row_bytes.size() * sizeof(CopyRows));
  const auto to = device_->allocate(kPlaces * bytes, MemoryTag::kOther);
  const auto seen = device_->allocate_pinned(kPlaces * bytes);
  auto* values = static_cast<uint16_t*>(from->data());
  for (size_t i = 0; i < bytes / 2; ++i) values[i] = static_cast<uint16_t>(i % 65521 + 1);
  std::memset(seen->data(), 0, seen->bytes());
  stream_->copy(to->data(), seen->data(), seen->bytes());
  auto* pieces = static_cast<CopyRows*>(list->data());
  std::vector<uint16_t> expected(kPlaces * bytes / 2, 0);
  size_t at = 0;
  for (size_t i = 0; i < row_bytes.size(); ++i) {
    const size_t row = row_bytes[i];
    pieces[i] = {static_cast<std::byte*>(to->data()) + kPlaces * at, row, kPlaces * row,
                 static_cast<const std::byte*>(from->data()) + at,   row, kRows};
    for (size_t r = 0; r < kRows; ++r)
      std::copy_n(values + (at + r * row) / 2, row / 2,
                  expected.begin() + static_cast<int64_t>(kPlaces * (at + r * row) + 2 * row) / 2);
    at += row * kRows;
  }
  stream_->copy_rows({pieces, row_bytes.size()}, 2);
  stream_->copy(seen->data(), to->data(), seen->bytes());
  stream_->synchronize();
  const auto* got = static_cast<const uint16_t*>(seen->data());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "at " << i;
}

TEST_F(CopierTest, ManyMorePiecesThanAListHolds) {
  constexpr size_t kCount = 40000, kBytes = 256;
  const auto from = device_->allocate(kCount * kBytes, MemoryTag::kOther);
  const auto to = device_->allocate(kCount * kBytes, MemoryTag::kOther);
  number(from->data(), kCount * kBytes / 4);
  std::vector<CopyPiece> pieces;  // in reverse
  for (size_t i = 0; i < kCount; ++i)
    pieces.push_back({static_cast<std::byte*>(to->data()) + (kCount - 1 - i) * kBytes,
                      static_cast<const std::byte*>(from->data()) + i * kBytes, kBytes});
  const auto copier = device_->create_copier();
  copier->copy_all(pieces);
  copier->finish();
  const auto words = words_at(to->data(), kCount * kBytes / 4);
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t block = i / (kBytes / 4);
    ASSERT_EQ(words[i], (kCount - 1 - block) * (kBytes / 4) + i % (kBytes / 4));
  }
}

}  // namespace
}  // namespace refrain::worker
