#pragma once
// A bounded map from short pieces of text to their token ids; forgets everything when full. Owned
// by one encode call at a time (it lives in that call's scratch).

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/ids.h"

namespace refrain::text {

class PieceCache {
 public:
  static constexpr size_t kMaxPieceBytes = 64;

  PieceCache();

  // The ids stored for `piece`; data() is null if it is not known. Valid until the next insert().
  std::span<const TokenId> find(std::string_view piece, uint64_t hash) const;
  void insert(std::string_view piece, uint64_t hash, std::span<const TokenId> ids);

  static uint64_t hash_of(std::string_view piece);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t key_at = 0, ids_at = 0;
    uint32_t key_size = 0;  // 0: free
    uint32_t ids_size = 0;
  };
  void clear();

  std::vector<Slot> slots_;
  std::vector<char> keys_;
  std::vector<TokenId> ids_;
  size_t used_ = 0;
};

}  // namespace refrain::text
