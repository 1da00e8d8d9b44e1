#include "runtime/server/messages_request.h"

#include "runtime/server/chat_body.h"
#include "runtime/text/answer/marker_search.h"

namespace refrain {
namespace {

// The text of a string or of a list of text blocks.
Result<std::string> text_of_blocks(const OrderedJson& content, const std::string& where) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    return fail_field("messages", "{} must be a string or a list of blocks", where);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string type = string_in(content[i], "type");
    if (type != "text") {
      return fail_field("messages", "{}[{}] is of type '{}'; only text is supported", where, i,
                        type);
    }
    if (i > 0) text += '\n';
    text += string_in(content[i], "text");
  }
  return text;
}

OrderedJson chat_call(const OrderedJson& block) {
  const OrderedJson input = block.value("input", OrderedJson::object());
  return {{"id", string_in(block, "id")},
          {"type", "function"},
          {"function",
           {{"name", string_in(block, "name")},
            {"arguments", input.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)}}}};
}

// A message's blocks: text and calls stay one message, each result of a call is one of its own.
Status add_blocks(ChatBody& body, const std::string& role, const OrderedJson& blocks,
                  const std::string& where) {
  OrderedJson texts = OrderedJson::array(), calls = OrderedJson::array();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const OrderedJson& block = blocks[i];
    const std::string type = string_in(block, "type"), place = fmt::format("{}[{}]", where, i);
    if (type == "text") {
      texts.push_back(block);
    } else if (type == "tool_use" && role == "assistant") {
      calls.push_back(chat_call(block));
    } else if (type == "tool_result" && role == "user") {
      REFRAIN_ASSIGN_OR_RETURN(
          std::string result,
          text_of_blocks(block.value("content", OrderedJson()), place + ".content"));
      body.add_message({{"role", "tool"},
                        {"tool_call_id", string_in(block, "tool_use_id")},
                        {"content", std::move(result)}});
    } else if (type != "thinking" && type != "redacted_thinking") {
      return fail_field("messages",
                        "{} of role {} is of type '{}'; there are text, tool_use, "
                        "tool_result and thinking",
                        place, role, type);
    }
  }
  if (texts.empty() && calls.empty()) return {};
  REFRAIN_ASSIGN_OR_RETURN(std::string text, text_of_blocks(texts, where));
  OrderedJson message = {{"role", role}, {"content", std::move(text)}};
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  body.add_message(std::move(message));
  return {};
}

Status add_messages(ChatBody& body, const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty())
    return fail_field("messages", "messages must be a list of at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = string_in(messages[i], "role");
    if (role != "user" && role != "assistant")
      return fail_field("messages", "messages[{}] must have the role user or assistant", i);
    const OrderedJson content = messages[i].value("content", OrderedJson());
    const std::string where = fmt::format("messages[{}].content", i);
    if (content.is_string()) {
      body.add_message({{"role", role}, {"content", content}});
    } else if (content.is_array() && !content.empty()) {
      REFRAIN_RETURN_IF_ERROR(add_blocks(body, role, content, where));
    } else {
      return fail_field("messages", "{} must be a string or a list of at least one block", where);
    }
  }
  return {};
}

// Whether the client has begun the answer, which then goes on from there.
bool begins_the_answer(const OrderedJson& messages) {
  if (messages.empty()) return false;
  const OrderedJson& last = messages.back();
  return last["role"] == "assistant" && !last.contains("tool_calls") &&
         !text::trimmed(last["content"].get_ref<const std::string&>()).empty();
}

// {"name", "description", "input_schema"} as chats have it.
Result<OrderedJson> tools_of_messages(const OrderedJson& tools) {
  if (!tools.is_array()) return fail_field("tools", "tools must be a list");
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& tool = tools[i];
    const std::string type =
        tool.is_object() && tool.contains("type") ? string_in(tool, "type") : "custom";
    if (type != "custom" || string_in(tool, "name").empty())
      return fail_field("tools",
                        "tools[{}] must have a name and an input_schema; tools of a "
                        "server's own are not supported",
                        i);
    OrderedJson function = {{"name", tool["name"]}};
    if (tool.contains("description")) function["description"] = tool["description"];
    if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

Status pass_tools(ChatBody& body) {
  const OrderedJson tools = body.take("tools"), choice = body.take("tool_choice");
  if (!tools.is_null()) {
    REFRAIN_ASSIGN_OR_RETURN(OrderedJson list, tools_of_messages(tools));
    if (!list.empty()) body.set("tools", std::move(list));
  }
  if (choice.is_null()) return {};
  const std::string type = string_in(choice, "type");
  if (choice.is_object() && choice.contains("disable_parallel_tool_use"))
    body.set("parallel_tool_calls", choice["disable_parallel_tool_use"] != true);
  if (type == "tool") {
    body.set("tool_choice",
             {{"type", "function"}, {"function", {{"name", string_in(choice, "name")}}}});
    return {};
  }
  if (type != "auto" && type != "any" && type != "none")
    return fail_field("tool_choice", "tool_choice must be of type auto, any, tool or none");
  if (type != "auto" || !tools.is_null())
    body.set("tool_choice", type == "any" ? "required" : type);
  return {};
}

}  // namespace

Result<ApiRequest> parse_messages_request(const OrderedJson& given, const RequestRules& rules) {
  if (!given.is_object())
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  ChatBody body(given);
  const OrderedJson system = body.take("system");
  if (!system.is_null()) {
    REFRAIN_ASSIGN_OR_RETURN(std::string text, text_of_blocks(system, "system"));
    body.add_message({{"role", "system"}, {"content", std::move(text)}});
  }
  REFRAIN_RETURN_IF_ERROR(add_messages(body, body.take("messages")));
  if (begins_the_answer(body.chat()["messages"])) body.set("continue_final_message", true);
  REFRAIN_RETURN_IF_ERROR(pass_tools(body));
  const OrderedJson most = body.take("max_tokens");
  if (most.is_null()) return fail_field("max_tokens", "max_tokens is missing");
  body.set("max_tokens", most);
  body.pass_as("stop_sequences", "stop");
  body.pass_shared();
  auto chat = parse_chat_request(body.chat(), rules);
  if (!chat && chat.error().field == "stop") {
    Error error = chat.error();
    error.field = "stop_sequences";
    error.message = "stop_sequences must be a list of strings";
    return tl::make_unexpected(std::move(error));
  }
  if (chat) chat->ignored = body.left();
  return chat;
}

}  // namespace refrain
