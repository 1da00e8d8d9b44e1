#include "runtime/server/block_writer.h"

#include <utility>

namespace refrain {

void BlockWriter::event(const char* type, Json data) {
  if (!streams_) return;
  data["type"] = type;
  events_ += fmt::format("event: {}\ndata: {}\n\n", type, dump(data));
}

std::string BlockWriter::begin(const ChoiceText& /*choice*/) {
  streams_ = true;
  answer_begins();
  return std::exchange(events_, {});
}

void BlockWriter::close() {
  if (std::exchange(open_, false)) block_ends(blocks_.back());
}

AnswerBlock& BlockWriter::block_of(BlockKind kind) {
  if (open_ && blocks_.back().kind == kind) return blocks_.back();
  close();
  blocks_.push_back({.kind = kind, .text = {}, .call_id = {}, .name = {}});
  open_ = true;
  return blocks_.back();
}

void BlockWriter::grow(BlockKind kind, const std::string& text) {
  if (text.empty()) return;
  const bool fresh = !open_ || blocks_.back().kind != kind;
  AnswerBlock& block = block_of(kind);
  if (fresh) block_begins(block);
  block.text += text;
  block_grows(block, text);
}

void BlockWriter::take(const ChoiceText& part) {
  auto call = part.calls.begin();
  const bool goes_on = call != part.calls.end() && call->id.empty();
  if (goes_on) grow(BlockKind::kCall, (call++)->arguments);  // before what follows the open call
  grow(BlockKind::kReasoning, part.reasoning);
  grow(BlockKind::kText, part.text);
  for (; call != part.calls.end(); ++call) {
    close();
    AnswerBlock& block = block_of(BlockKind::kCall);
    block.call_id = call->id;
    block.name = call->name;
    block_begins(block);
    grow(BlockKind::kCall, call->arguments);
  }
  ending_.finish = part.finish;
  ending_.stop_reason = part.stop_reason;
  ending_.stop_token = part.stop_token;
  ending_.called = part.called;
}

std::string BlockWriter::part(const ChoiceText& part, int64_t /*text_offset*/) {
  take(part);
  return std::exchange(events_, {});
}

std::string BlockWriter::end(const Usage& usage) {
  close();
  answer_ends(answer(usage), usage);
  return std::exchange(events_, {});
}

std::string BlockWriter::error(const std::string& body) {
  streams_ = true;
  answer_fails(Json::parse(body));
  return std::exchange(events_, {});
}

std::string BlockWriter::whole(const std::vector<ChoiceText>& choices, const Usage& usage) {
  take(choices.front());
  close();
  return dump(answer(usage));
}

}  // namespace refrain
