#pragma once
// Token strings and their ids, both ways. Filled while loading, then immutable and shared.

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/ids.h"

namespace refrain::text {

inline constexpr TokenId kMaxTokenId = (1 << 22) - 1;
inline constexpr TokenId kNoToken = -1;

class Vocabulary {
 public:
  void reserve(size_t count);
  // False if the id already has another string. 0 <= id <= kMaxTokenId.
  bool add(TokenId id, std::string_view token);

  TokenId id_of(std::string_view token) const;  // kNoToken if there is none
  // The token's string as written in tokenizer.json; nothing for an id that has none.
  std::optional<std::string_view> token(TokenId id) const;
  size_t size() const { return by_id_.size(); }  // highest id + 1

 private:
  std::deque<std::string> storage_;  // keeps addresses
  std::vector<const std::string*> by_id_;
  std::unordered_map<std::string_view, TokenId> ids_;
};

}  // namespace refrain::text
