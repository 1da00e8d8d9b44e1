#include "runtime/server/messages_writer.h"

#include "runtime/server/block_writer.h"

namespace refrain {
namespace {

class MessagesWriter final : public BlockWriter {
 public:
  explicit MessagesWriter(const AnswerHead& head) : head_(head) {}

 private:
  void answer_begins() override {
    event("message_start", {{"message", message(Json::array(), {})}});
  }
  void block_begins(const AnswerBlock& block) override {
    AnswerBlock empty = block;
    empty.text.clear();
    event("content_block_start", {{"index", last_index()}, {"content_block", block_json(empty)}});
  }
  void block_grows(const AnswerBlock& block, std::string_view text) override {
    Json delta;
    switch (block.kind) {
      case BlockKind::kReasoning:
        delta = {{"type", "thinking_delta"}, {"thinking", text}};
        break;
      case BlockKind::kText:
        delta = {{"type", "text_delta"}, {"text", text}};
        break;
      case BlockKind::kCall:
        delta = {{"type", "input_json_delta"}, {"partial_json", text}};
        break;
    }
    event("content_block_delta", {{"index", last_index()}, {"delta", std::move(delta)}});
  }
  void block_ends(const AnswerBlock& /*block*/) override {
    event("content_block_stop", {{"index", last_index()}});
  }
  void answer_ends(const Json& answer, const Usage& /*usage*/) override {
    event("message_delta",
          {{"delta",
            {{"stop_reason", answer["stop_reason"]}, {"stop_sequence", answer["stop_sequence"]}}},
           {"usage", answer["usage"]}});
    event("message_stop", Json::object());
  }
  void answer_fails(const Json& error) override { event("error", {{"error", error["error"]}}); }

  Json answer(const Usage& usage) override {
    Json content = Json::array();
    for (const AnswerBlock& block : blocks()) content.push_back(block_json(block));
    Json answer = message(std::move(content), usage);
    const bool by_word = !ending().stop_reason.empty();
    answer["stop_reason"] = ending().finish == FinishReason::kLength ? "max_tokens"
                            : ending().called                        ? "tool_use"
                            : by_word                                ? "stop_sequence"
                                                                     : "end_turn";
    if (answer["stop_reason"] == "stop_sequence") answer["stop_sequence"] = ending().stop_reason;
    return answer;
  }

  // Arguments are an object here, and no call's text is anything else.
  static Json block_json(const AnswerBlock& block) {
    if (block.kind == BlockKind::kReasoning)
      return {{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}};
    if (block.kind == BlockKind::kText) return {{"type", "text"}, {"text", block.text}};
    Json input = Json::parse(block.text, nullptr, /*allow_exceptions=*/false);
    if (!input.is_object()) input = Json::object();
    return {{"type", "tool_use"},
            {"id", block.call_id},
            {"name", block.name},
            {"input", std::move(input)}};
  }
  Json message(Json content, const Usage& usage) const {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", std::move(content)},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage",
             {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
              {"cache_read_input_tokens", usage.cached_tokens},
              {"output_tokens", usage.completion_tokens}}}};
  }

  const AnswerHead& head_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(const AnswerHead& head,
                                                   const ApiRequest& /*request*/,
                                                   const text::Tokenizer& /*tokenizer*/) {
  return std::make_unique<MessagesWriter>(head);
}

}  // namespace refrain
