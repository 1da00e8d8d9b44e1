#include "runtime/text/added_tokens.h"

#include <algorithm>

#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  const size_t length = previous_char_length(text, text.size());
  return is_word_char(read_utf8(text, text.size() - length).code_point);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_char(read_utf8(text, 0).code_point);
}

size_t spaces_before(std::string_view text, size_t at, size_t not_before) {
  while (at > not_before) {
    const size_t length = previous_char_length(text, at);
    if (!is_white_space(read_utf8(text, at - length).code_point)) break;
    at -= length;
  }
  return std::max(at, not_before);
}

size_t spaces_behind(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Unit unit = read_utf8(text, at);
    if (!is_white_space(unit.code_point)) break;
    at += unit.length;
  }
  return at;
}

}  // namespace

uint32_t StringTrie::child(uint32_t node, uint8_t byte) const {
  const auto& children = nodes_[node].children;
  const auto it = std::lower_bound(children.begin(), children.end(), std::pair(byte, 0U));
  return it != children.end() && it->first == byte ? it->second : kNone;
}

void StringTrie::add(std::string_view text, uint32_t index) {
  if (text.empty()) return;
  first_bytes_.set(static_cast<uint8_t>(text.front()));
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[node].children;
      children.insert(std::lower_bound(children.begin(), children.end(), std::pair(byte, 0U)),
                      {byte, next});
    }
    node = next;
  }
  if (nodes_[node].index == kNone) nodes_[node].index = index;
}

bool StringTrie::find(std::string_view text, size_t from, size_t& begin, size_t& end,
                      uint32_t& index) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (!first_bytes_.test(static_cast<uint8_t>(text[i]))) continue;
    bool found = false;
    uint32_t node = 0;
    for (size_t j = i; j < text.size(); ++j) {
      node = child(node, static_cast<uint8_t>(text[j]));
      if (node == kNone) break;
      if (nodes_[node].index != kNone) {
        found = true;
        begin = i;
        end = j + 1;
        index = nodes_[node].index;
      }
    }
    if (found) return true;
  }
  return false;
}

Status AddedTokens::add(AddedToken token) {
  if (token.content.empty())
    return fail(ErrorCode::kInvalidArgument, "the token with id {} has no content", token.id);
  if (token.content.size() > kMaxContentBytes)
    return fail(ErrorCode::kInvalidArgument, "the token with id {} is longer than {} bytes",
                token.id, kMaxContentBytes);
  const auto [it, is_new] = ids_.try_emplace(token.id, tokens_.size());
  if (is_new) {
    contents_.insert_or_assign(token.content, tokens_.size());
    tokens_.push_back(std::move(token));
  } else {
    contents_.erase(tokens_[it->second].content);
    contents_.insert_or_assign(token.content, it->second);
    tokens_[it->second] = std::move(token);
  }
  return {};
}

Status AddedTokens::build(const Normalizer* normalizer) {
  RegexScratch scratch;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    token.written = token.content;
    if (token.normalized && normalizer != nullptr) {
      REFRAIN_ASSIGN_OR_RETURN(token.written, normalizer->apply(token.content, scratch));
    }
    (token.normalized ? normalized_ : raw_).add(token.written, static_cast<uint32_t>(i));
  }
  return {};
}

const AddedToken* AddedTokens::by_id(TokenId id) const {
  const auto it = ids_.find(id);
  return it == ids_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto it = contents_.find(std::string(content));
  return it == contents_.end() ? nullptr : &tokens_[it->second];
}

Status AddedTokens::split_by(const StringTrie& trie, std::string_view text, const OnText& on_text,
                             const OnToken& on_token) const {
  size_t done = 0;  // everything before is called back
  size_t at = 0;
  size_t begin = 0, end = 0;
  uint32_t index = 0;
  while (!trie.empty() && trie.find(text, at, begin, end, index)) {
    at = end;
    const AddedToken& token = tokens_[index];
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token.lstrip) begin = spaces_before(text, begin, std::min(done, begin));
    if (token.rstrip) end = spaces_behind(text, end);
    if (begin > done) REFRAIN_RETURN_IF_ERROR(on_text(text.substr(done, begin - done), done == 0));
    on_token(token.id);
    done = std::max(done, end);
  }
  if (done < text.size()) return on_text(text.substr(done), done == 0);
  return {};
}

Status AddedTokens::split(std::string_view text, const Normalizer* normalizer,
                          RegexScratch& scratch, const OnText& on_text,
                          const OnToken& on_token) const {
  return split_by(
      raw_, text,
      [&](std::string_view part, bool at_start) -> Status {
        std::string buffer;
        if (normalizer != nullptr) {
          REFRAIN_ASSIGN_OR_RETURN(buffer, normalizer->apply(part, scratch));
          part = buffer;
        }
        return split_by(
            normalized_, part,
            [&](std::string_view inner, bool first) { return on_text(inner, at_start && first); },
            on_token);
      },
      on_token);
}

}  // namespace refrain::text
