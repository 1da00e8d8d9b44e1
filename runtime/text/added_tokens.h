#pragma once
// The "added_tokens" of tokenizer.json (special tokens among them): finds them in a text before
// anything else cuts it. Filled while loading, then immutable and shared.

#include <bitset>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/vocabulary.h"

namespace refrain::text {

struct AddedToken {
  TokenId id = kNoToken;
  std::string content;
  bool single_word = false;  // only between characters that are not part of a word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // is looked for in the normalised text
  bool special = false;
  std::string written;  // what decoding writes: content, normalised if it is matched normalised
};

// Finds the leftmost, then longest, of a set of strings.
class StringTrie {
 public:
  void add(std::string_view text, uint32_t index);
  bool empty() const { return nodes_.size() == 1; }
  // The match that begins first at or behind `from`; false if there is none.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end, uint32_t& index) const;

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
    uint32_t index = kNone;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_{1};
  std::bitset<256> first_bytes_;
};

class AddedTokens {
 public:
  static constexpr size_t kMaxContentBytes = 1024;

  using OnText = std::function<Status(std::string_view text, bool at_start)>;
  using OnToken = std::function<void(TokenId)>;

  // Later tokens replace earlier ones of the same id. The error names what is wrong.
  Status add(AddedToken token);
  // Call once after the last add().
  Status build(const Normalizer* normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* by_id(TokenId id) const;
  const AddedToken* by_content(std::string_view content) const;

  // Calls back, in order, with the tokens of `text` and the (normalised) stretches between them.
  Status split(std::string_view text, const Normalizer* normalizer, RegexScratch& scratch,
               const OnText& on_text, const OnToken& on_token) const;

 private:
  Status split_by(const StringTrie& trie, std::string_view text, const OnText& on_text,
                  const OnToken& on_token) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, size_t> ids_;
  std::unordered_map<std::string, size_t> contents_;
  StringTrie raw_, normalized_;
};

}  // namespace refrain::text
