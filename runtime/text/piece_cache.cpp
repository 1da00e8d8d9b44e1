#include "runtime/text/piece_cache.h"

#include <algorithm>
#include <cstring>

namespace refrain::text {
namespace {

constexpr size_t kSlots = size_t{1} << 15;
constexpr size_t kMaxUsed = kSlots / 2;
constexpr size_t kKeyBytes = size_t{1} << 20;

}  // namespace

PieceCache::PieceCache() : slots_(kSlots) {}

uint64_t PieceCache::hash_of(std::string_view piece) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL ^ piece.size();
  const char* data = piece.data();
  size_t left = piece.size();
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDULL;
    hash ^= hash >> 32;
  };
  for (; left >= 8; left -= 8, data += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    mix(word);
  }
  uint64_t word = 0;
  std::memcpy(&word, data, left);
  mix(word);
  return hash;
}

std::span<const TokenId> PieceCache::find(std::string_view piece, uint64_t hash) const {
  for (size_t i = hash % kSlots;; i = (i + 1) % kSlots) {
    const Slot& slot = slots_[i];
    if (slot.key_size == 0) return {};
    if (slot.hash == hash && slot.key_size == piece.size() &&
        std::memcmp(keys_.data() + slot.key_at, piece.data(), piece.size()) == 0)
      return {ids_.data() + slot.ids_at, slot.ids_size};
  }
}

void PieceCache::insert(std::string_view piece, uint64_t hash, std::span<const TokenId> ids) {
  if (piece.empty() || piece.size() > kMaxPieceBytes) return;
  if (used_ >= kMaxUsed || keys_.size() + piece.size() > kKeyBytes) clear();
  size_t i = hash % kSlots;
  while (slots_[i].key_size != 0) i = (i + 1) % kSlots;
  slots_[i] = {hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(ids_.size()),
               static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(ids.size())};
  keys_.insert(keys_.end(), piece.begin(), piece.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void PieceCache::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  keys_.clear();
  ids_.clear();
  used_ = 0;
}

}  // namespace refrain::text
