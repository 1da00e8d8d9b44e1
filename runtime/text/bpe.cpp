#include "runtime/text/bpe.h"

#include <algorithm>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

constexpr uint32_t kFree = 0xFFFFFFFFU;

uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ULL;
  return key ^ (key >> 29);
}

// Heap order: lowest rank first, leftmost among equals.
bool later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

void BpeModel::build_merge_table(const std::vector<Merge>& merges) {
  size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  merges_.assign(capacity, {0, kFree, kNoToken});
  for (const Merge& merge : merges) {
    size_t i = mix(merge.pair) & (capacity - 1);
    while (merges_[i].rank != kFree && merges_[i].pair != merge.pair) i = (i + 1) & (capacity - 1);
    merges_[i] = merge;  // a repeated pair: the later one counts
  }
}

const BpeModel::Merge* BpeModel::find_merge(TokenId left, TokenId right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t i = mix(key) & mask;; i = (i + 1) & mask) {
    if (merges_[i].rank == kFree) return nullptr;
    if (merges_[i].pair == key) return &merges_[i];
  }
}

void BpeModel::build_initial_symbols() {
  if (byte_fallback_) {
    for (int byte = 0; byte < 256; ++byte)
      fallback_.push_back(vocabulary_->id_of(fmt::format("<0x{:02X}>", byte)));
  }
  if (!raw_bytes_) return;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    byte_symbols_.push_back(vocabulary_->id_of(bytes_to_chars({&raw, 1})));
  }
  if (!ignore_merges_) return;
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary_->size()); ++id) {
    const auto token = vocabulary_->token(id);
    if (!token) continue;
    if (auto bytes = chars_to_bytes(*token)) whole_pieces_.emplace(std::move(*bytes), id);
  }
}

Status BpeModel::encode(std::string_view piece, BpeScratch& scratch,
                        std::vector<TokenId>& ids) const {
  if (piece.empty()) return {};
  if (piece.size() > kMaxPieceBytes)
    return fail(ErrorCode::kTooLarge,
                "the text has a stretch of {} bytes that the tokenizer cannot split; at most {} "
                "are encoded",
                piece.size(), kMaxPieceBytes);
  if (ignore_merges_) {
    TokenId whole = kNoToken;
    if (raw_bytes_) {
      const auto it = whole_pieces_.find(std::string(piece));
      if (it != whole_pieces_.end()) whole = it->second;
    } else {
      whole = vocabulary_->id_of(piece);
    }
    if (whole != kNoToken) {
      ids.push_back(whole);
      return {};
    }
  }
  const bool cacheable = piece.size() <= PieceCache::kMaxPieceBytes;
  const uint64_t hash = cacheable ? PieceCache::hash_of(piece) : 0;
  if (cacheable) {
    const auto known = scratch.cache.find(piece, hash);
    if (known.data() != nullptr) {
      ids.insert(ids.end(), known.begin(), known.end());
      return {};
    }
  }
  const size_t first = ids.size();
  split_into_symbols(piece, scratch);
  merge_all(scratch);
  for (const auto& symbol : scratch.symbols)
    if (symbol.id != kNoToken) ids.push_back(symbol.id);
  if (cacheable) scratch.cache.insert(piece, hash, std::span(ids).subspan(first));
  return {};
}

void BpeModel::split_into_symbols(std::string_view piece, BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  bool unknown_pending = false;  // an unknown character not yet written as unk_
  for (size_t i = 0; i < piece.size();) {
    TokenId id = kNoToken;
    std::string_view character = piece.substr(i, 1);
    std::string written;
    if (raw_bytes_) {
      id = byte_symbols_[static_cast<uint8_t>(piece[i])];
      if (id == kNoToken) written = bytes_to_chars(character);
    } else {
      character = piece.substr(i, read_utf8(piece, i).length);
      id = vocabulary_->id_of(character);
    }
    i += character.size();
    if (id == kNoToken) {
      push_unknown(written.empty() ? character : written, scratch, unknown_pending);
      continue;
    }
    if (unknown_pending) symbols.push_back({unk_, 0, 0});
    unknown_pending = false;
    symbols.push_back({id, 0, 0});
  }
  if (unknown_pending) symbols.push_back({unk_, 0, 0});
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

void BpeModel::push_unknown(std::string_view character, BpeScratch& scratch,
                            bool& unknown_pending) const {
  if (byte_fallback_) {
    const auto known = [&](char c) { return fallback_[static_cast<uint8_t>(c)] != kNoToken; };
    if (std::all_of(character.begin(), character.end(), known)) {
      for (const char c : character)
        scratch.symbols.push_back({fallback_[static_cast<uint8_t>(c)], 0, 0});
      return;
    }
  }
  if (unk_ == kNoToken) return;  // without an unknown token the character is dropped
  if (unknown_pending && !fuse_unk_) scratch.symbols.push_back({unk_, 0, 0});
  unknown_pending = true;
}

void BpeModel::push_candidate(BpeScratch& scratch, int32_t left) const {
  const auto& symbol = scratch.symbols[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const auto& right = scratch.symbols[static_cast<size_t>(symbol.next)];
  if (const Merge* merge = find_merge(symbol.id, right.id)) {
    scratch.heap.push_back({merge->rank, static_cast<uint32_t>(left), merge->merged});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
  }
}

// Merges the best-ranked adjacent pair until none is left: a linked list of symbols and a heap of
// candidates, which may be out of date when they come up. O(n log n).
void BpeModel::merge_all(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    if (const Merge* merge = find_merge(symbols[i].id, symbols[i + 1].id))
      heap.push_back({merge->rank, static_cast<uint32_t>(i), merge->merged});
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[top.left];
    if (left.id == kNoToken || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;
    left.id = top.merged;
    right.id = kNoToken;
    left.next = right.next;
    if (right.next >= 0)
      symbols[static_cast<size_t>(right.next)].previous = static_cast<int32_t>(top.left);
    push_candidate(scratch, static_cast<int32_t>(top.left));
    if (left.previous >= 0) push_candidate(scratch, left.previous);
  }
}

}  // namespace refrain::text
