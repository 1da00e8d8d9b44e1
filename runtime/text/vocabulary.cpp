#include "runtime/text/vocabulary.h"

#include "runtime/base/check.h"

namespace refrain::text {

void Vocabulary::reserve(size_t count) {
  by_id_.reserve(count);
  ids_.reserve(count);
}

bool Vocabulary::add(TokenId id, std::string_view token) {
  REFRAIN_CHECK(id >= 0 && id <= kMaxTokenId, "token id {} out of range", id);
  const auto index = static_cast<size_t>(id);
  if (index >= by_id_.size()) by_id_.resize(index + 1, nullptr);
  if (by_id_[index] != nullptr) return *by_id_[index] == token;
  storage_.emplace_back(token);
  by_id_[index] = &storage_.back();
  ids_.insert_or_assign(storage_.back(), id);
  return true;
}

TokenId Vocabulary::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? kNoToken : it->second;
}

std::optional<std::string_view> Vocabulary::token(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return std::nullopt;
  const std::string* text = by_id_[static_cast<size_t>(id)];
  if (text == nullptr) return std::nullopt;
  return *text;
}

}  // namespace refrain::text
