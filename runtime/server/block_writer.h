#pragma once
// Writes an answer as a list of blocks, each of one kind, one open at a time: what the shapes of
// /v1/responses and /v1/messages share. Owned by a session, under its lock.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/server/answer_writer.h"

namespace refrain {

enum class BlockKind : uint8_t { kReasoning, kText, kCall };

struct AnswerBlock {
  BlockKind kind = BlockKind::kText;
  std::string text;     // of a call: its arguments
  std::string call_id;  // of a call
  std::string name;
};

class BlockWriter : public AnswerWriter {
 public:
  std::string begin(const ChoiceText& choice) final;
  std::string part(const ChoiceText& part, int64_t text_offset) final;
  std::string end(const Usage& usage) final;
  std::string error(const std::string& body) final;
  std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) final;

 protected:
  virtual void answer_begins() = 0;
  virtual void block_begins(const AnswerBlock& block) = 0;
  virtual void block_grows(const AnswerBlock& block, std::string_view text) = 0;
  virtual void block_ends(const AnswerBlock& block) = 0;
  virtual void answer_ends(const Json& answer, const Usage& usage) = 0;
  virtual void answer_fails(const Json& error) = 0;
  // The whole answer; both ways ask for it once, at the end.
  virtual Json answer(const Usage& usage) = 0;

  // One event; nothing where the answer is no stream. `data` gets the type.
  void event(const char* type, Json data);
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  size_t last_index() const { return blocks_.size() - 1; }  // of the block that is told about
  const ChoiceText& ending() const { return ending_; }      // why the answer ended; no text

 private:
  AnswerBlock& block_of(BlockKind kind);
  void take(const ChoiceText& part);
  void grow(BlockKind kind, const std::string& text);
  void close();

  std::vector<AnswerBlock> blocks_;
  ChoiceText ending_;
  bool open_ = false;  // the last block
  bool streams_ = false;
  std::string events_;  // made and not yet taken
};

}  // namespace refrain
