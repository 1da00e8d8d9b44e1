#include "runtime/server/bad_words.h"

namespace refrain {

Result<std::vector<std::vector<TokenId>>> encode_bad_words(const text::Tokenizer& tokenizer,
                                                           const std::vector<std::string>& words) {
  std::vector<std::vector<TokenId>> sequences;
  if (words.size() > kMaxBadWords)
    return fail_field("bad_words", "bad_words has {} strings; at most {} are allowed", words.size(),
                      kMaxBadWords);
  for (const std::string& word : words) {
    const size_t begin = word.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos)
      return fail_field("bad_words", "bad_words holds a string without a letter");
    if (word.size() > kMaxBadWordBytes)
      return fail_field("bad_words", "bad_words holds a string of {} bytes; at most {} are allowed",
                        word.size(), kMaxBadWordBytes);
    const std::string bare = word.substr(begin);
    REFRAIN_ASSIGN_OR_RETURN(auto alone, tokenizer.encode(bare, /*add_special_tokens=*/false));
    REFRAIN_ASSIGN_OR_RETURN(auto inside,
                             tokenizer.encode(" " + bare, /*add_special_tokens=*/false));
    if (alone.empty())
      return fail_field("bad_words", "bad_words holds a string that has no tokens");
    const bool both = inside.size() == alone.size() && inside.front() != alone.front();
    sequences.push_back(std::move(alone));
    if (both) sequences.push_back(std::move(inside));
  }
  return sequences;
}

}  // namespace refrain
