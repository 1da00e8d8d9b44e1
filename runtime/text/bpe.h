#pragma once
// Byte-pair encoding of one piece of text, as the BPE model of tokenizer.json. Immutable after load
// and shared by threads; each encode call brings its own BpeScratch.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/text/piece_cache.h"
#include "runtime/text/vocabulary.h"

namespace refrain::text {

class JsonView;

struct BpeScratch {
  struct Symbol {
    TokenId id;              // kNoToken once merged into its left neighbour
    int32_t previous, next;  // -1 at the ends
  };
  struct Candidate {
    uint32_t rank, left;
    TokenId merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  PieceCache cache;
};

class BpeModel {
 public:
  static constexpr size_t kMaxPieceBytes = size_t{4} << 20;

  // `model`: the "model" object; its vocab is already in `vocabulary`, which must outlive this.
  // raw_bytes: pieces arrive as bytes and the vocabulary is written in the byte alphabet.
  static Result<BpeModel> load(const JsonView& model, const Vocabulary& vocabulary, bool raw_bytes);

  // Appends the ids of `piece`. Fails on a piece above kMaxPieceBytes.
  Status encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& ids) const;

 private:
  struct Merge {
    uint64_t pair;
    uint32_t rank;
    TokenId merged;
  };
  Status load_options(const JsonView& model);
  Status load_merges(const JsonView& merges);
  void build_merge_table(const std::vector<Merge>& merges);
  void build_initial_symbols();
  const Merge* find_merge(TokenId left, TokenId right) const;

  void split_into_symbols(std::string_view piece, BpeScratch& scratch) const;
  void push_unknown(std::string_view character, BpeScratch& scratch, bool& unknown_pending) const;
  void push_candidate(BpeScratch& scratch, int32_t left) const;
  void merge_all(BpeScratch& scratch) const;

  const Vocabulary* vocabulary_ = nullptr;
  bool raw_bytes_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  TokenId unk_ = kNoToken;
  std::vector<Merge> merges_;  // open addressing, a power of two; rank kFree marks a free slot
  std::vector<TokenId> byte_symbols_;                      // raw_bytes: id of each byte
  std::vector<TokenId> fallback_;                          // ids of <0x00> … <0xFF>
  std::unordered_map<std::string, TokenId> whole_pieces_;  // raw_bytes and ignore_merges
};

}  // namespace refrain::text
