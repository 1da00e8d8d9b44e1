#include "runtime/server/responses_writer.h"

#include <utility>

#include "runtime/server/block_writer.h"

namespace refrain {
namespace {

struct Names {
  const char* id;     // of an item, before its number
  const char* delta;  // events
  const char* done;
  const char* content_type;  // of the item's part
};

const Names& names_of(BlockKind kind) {
  static const Names reasoning = {"rs", "response.reasoning_text.delta",
                                  "response.reasoning_text.done", "reasoning_text"};
  static const Names text = {"msg", "response.output_text.delta", "response.output_text.done",
                             "output_text"};
  static const Names call = {"fc", "response.function_call_arguments.delta",
                             "response.function_call_arguments.done", ""};
  return kind == BlockKind::kReasoning ? reasoning : kind == BlockKind::kText ? text : call;
}

class ResponsesWriter final : public BlockWriter {
 public:
  ResponsesWriter(const AnswerHead& head, ResponsesRequest request, StoreResponse store)
      : head_(head), request_(std::move(request)), store_(std::move(store)) {}

 private:
  void answer_begins() override {
    const Json response = object("in_progress", Json::array(), nullptr);
    tell("response.created", {{"response", response}});
    tell("response.in_progress", {{"response", response}});
  }

  void block_begins(const AnswerBlock& block) override {
    AnswerBlock empty = block;
    empty.text.clear();
    Json item = item_json(empty, last_index(), "in_progress");
    if (item.contains("content")) item["content"] = Json::array();
    tell("response.output_item.added", {{"item", std::move(item)}});
    if (block.kind == BlockKind::kText)
      of_item("response.content_part.added", {{"part", part_json(empty)}});
  }

  void block_grows(const AnswerBlock& block, std::string_view text) override {
    Json data = {{"delta", text}};
    if (block.kind == BlockKind::kText) data["logprobs"] = Json::array();
    of_item(names_of(block.kind).delta, std::move(data));
  }

  void block_ends(const AnswerBlock& block) override {
    if (block.kind == BlockKind::kCall) {
      of_item(names_of(block.kind).done, {{"arguments", block.text}, {"name", block.name}});
    } else {
      Json data = {{"text", block.text}};
      if (block.kind == BlockKind::kText) data["logprobs"] = Json::array();
      of_item(names_of(block.kind).done, std::move(data));
    }
    if (block.kind == BlockKind::kText)
      of_item("response.content_part.done", {{"part", part_json(block)}});
    tell("response.output_item.done",
         {{"item", item_json(block, last_index(), status_of(last_index()))}});
  }

  void answer_ends(const Json& answer, const Usage& /*usage*/) override {
    const bool complete = answer["status"] == "completed";
    tell(complete ? "response.completed" : "response.incomplete", {{"response", answer}});
  }

  void answer_fails(const Json& error) override {
    const Json& what = error["error"];
    tell("error", {{"code", what["type"]}, {"message", what["message"]}, {"param", what["param"]}});
  }

  Json answer(const Usage& usage) override {
    const bool cut = ending().finish == FinishReason::kLength;
    Json output = Json::array();
    for (size_t i = 0; i < blocks().size(); ++i)
      output.push_back(item_json(blocks()[i], i, status_of(i)));
    Json response = object(cut ? "incomplete" : "completed", std::move(output), usage_of(usage));
    if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    if (store_) store_(response, conversation());
    return response;
  }

  // Of an item that has ended: the last one of a cut answer is incomplete, and so is a call that
  // was left in the middle of its arguments for another reason.
  const char* status_of(size_t index) const {
    const bool cut = ending().finish == FinishReason::kLength && index == last_index();
    return cut || !parses(blocks()[index]) ? "incomplete" : "completed";
  }
  static bool parses(const AnswerBlock& block) {
    return block.kind != BlockKind::kCall || block.text.empty() || parse_ordered_json(block.text);
  }

  // An event of the present item, or of the response.
  void of_item(const char* type, Json data) {
    data["item_id"] = item_id(blocks().back(), last_index());
    if (blocks().back().kind != BlockKind::kCall) data["content_index"] = 0;
    tell(type, std::move(data));
  }
  void tell(const char* type, Json data) {
    if (!blocks().empty() && !data.contains("response")) data["output_index"] = last_index();
    data["sequence_number"] = sequence_++;
    event(type, std::move(data));
  }

  std::string item_id(const AnswerBlock& block, size_t index) const {
    const std::string own = head_.id.substr(head_.id.find('_') + 1);
    return fmt::format("{}_{}{:04x}", names_of(block.kind).id, own, index);
  }
  static Json part_json(const AnswerBlock& block) {
    Json part = {{"type", names_of(block.kind).content_type}, {"text", block.text}};
    if (block.kind == BlockKind::kText) part["annotations"] = part["logprobs"] = Json::array();
    return part;
  }
  Json item_json(const AnswerBlock& block, size_t index, const char* status) const {
    Json item = {{"id", item_id(block, index)}, {"status", status}};
    switch (block.kind) {
      case BlockKind::kReasoning:
        item.update({{"type", "reasoning"}, {"summary", Json::array()}});
        item["content"].push_back(part_json(block));
        break;
      case BlockKind::kText:
        item.update({{"type", "message"}, {"role", "assistant"}});
        item["content"].push_back(part_json(block));
        break;
      case BlockKind::kCall:
        item.update({{"type", "function_call"},
                     {"call_id", block.call_id},
                     {"name", block.name},
                     {"arguments", block.text}});
        break;
    }
    return item;
  }

  Json object(const char* status, Json output, Json usage) const {
    Json response = request_.told;
    response.update({{"id", head_.id},
                     {"object", "response"},
                     {"created_at", head_.created},
                     {"model", head_.model},
                     {"status", status},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"output", std::move(output)},
                     {"usage", std::move(usage)}});
    return response;
  }
  static Json usage_of(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }

  // With the answer as a chat has it: what it thought is left out, and so is a call whose arguments
  // were cut, which no chat would take.
  OrderedJson conversation() const {
    OrderedJson messages = request_.messages;
    OrderedJson message = {{"role", "assistant"}, {"content", nullptr}};
    for (const AnswerBlock& block : blocks()) {
      if (block.kind == BlockKind::kText) {
        const OrderedJson& before = message["content"];
        message["content"] = (before.is_null() ? "" : before.get<std::string>()) + block.text;
      } else if (block.kind == BlockKind::kCall && parses(block)) {
        message["tool_calls"].push_back(
            {{"id", block.call_id},
             {"type", "function"},
             {"function", {{"name", block.name}, {"arguments", block.text}}}});
      }
    }
    messages.push_back(std::move(message));
    return messages;
  }

  const AnswerHead& head_;
  const ResponsesRequest request_;
  const StoreResponse store_;
  int64_t sequence_ = 0;
};

}  // namespace

MakeWriter make_responses_writer(ResponsesRequest request, StoreResponse store) {
  auto held = std::make_shared<ResponsesRequest>(std::move(request));
  return [held, store = std::move(store)](const AnswerHead& head, const ApiRequest&,
                                          const text::Tokenizer&) {
    return std::make_unique<ResponsesWriter>(head, std::move(*held), store);
  };
}

}  // namespace refrain
