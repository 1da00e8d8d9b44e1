#include "runtime/server/responses_request.h"

#include "runtime/server/chat_body.h"

namespace refrain {
namespace {

// A call of the history belongs to the assistant's message before it.
void add_call(OrderedJson& messages, const OrderedJson& item) {
  const bool joins = !messages.empty() && messages.back()["role"] == "assistant";
  if (!joins) messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  messages.back()["tool_calls"].push_back(
      {{"id", string_in(item, "call_id")},
       {"type", "function"},
       {"function",
        {{"name", string_in(item, "name")}, {"arguments", string_in(item, "arguments")}}}});
}

Status add_item(OrderedJson& messages, const OrderedJson& item, size_t i) {
  if (!item.is_object()) return fail_field("input", "input[{}] must be an object", i);
  const std::string type = item.contains("type") ? string_in(item, "type") : "message";
  if (type == "message") {
    if (string_in(item, "role").empty() || !item.contains("content"))
      return fail_field("input", "input[{}] must have a role and content", i);
    messages.push_back({{"role", item["role"]}, {"content", item["content"]}});
    return {};
  }
  if (type == "function_call") {
    if (string_in(item, "name").empty())
      return fail_field("input", "input[{}], a function_call, must have a name", i);
    add_call(messages, item);
    return {};
  }
  if (type == "function_call_output") {
    if (!item.contains("output"))
      return fail_field("input", "input[{}], a function_call_output, must have an output", i);
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", string_in(item, "call_id")},
                        {"content", item["output"]}});
    return {};
  }
  if (type == "reasoning") return {};  // templates leave out what an earlier turn thought
  return fail_field("input",
                    "input[{}] is of type '{}'; there are message, function_call, "
                    "function_call_output and reasoning",
                    i, type);
}

Status add_input(OrderedJson& messages, const OrderedJson& input) {
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    return {};
  }
  if (!input.is_array() || input.empty())
    return fail_field("input", "input must be a string or a list of at least one item");
  for (size_t i = 0; i < input.size(); ++i)
    REFRAIN_RETURN_IF_ERROR(add_item(messages, input[i], i));
  return {};
}

// {"type": "function", "name", "description", "parameters"} as chats have it.
Result<OrderedJson> chat_tools(const OrderedJson& tools) {
  if (!tools.is_array()) return fail_field("tools", "tools must be a list");
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    if (string_in(tools[i], "type") != "function")
      return fail_field("tools", "tools[{}] is of type '{}'; only functions are supported", i,
                        string_in(tools[i], "type"));
    OrderedJson function = tools[i];
    function.erase("type");
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

OrderedJson chat_tool_choice(OrderedJson choice) {
  if (!choice.is_object()) return choice;
  return {{"type", choice["type"]}, {"function", {{"name", string_in(choice, "name")}}}};
}

// text.format as a chat's response_format.
OrderedJson chat_format(const OrderedJson& format) {
  if (string_in(format, "type") != "json_schema") return format;
  OrderedJson schema = format;
  schema.erase("type");
  return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

Status refuse_what_is_not_there(ChatBody& body) {
  const auto refused = [&body](const char* name, auto&& allowed) -> Status {
    const OrderedJson value = body.take(name);
    if (value.is_null() || allowed(value)) return {};
    return fail_field(name, "{} is not supported", name);
  };
  const auto off = [](const OrderedJson& value) { return value == false; };
  const auto empty = [](const OrderedJson& value) { return value.empty(); };
  REFRAIN_RETURN_IF_ERROR(refused("background", off));
  REFRAIN_RETURN_IF_ERROR(refused("conversation", empty));
  REFRAIN_RETURN_IF_ERROR(refused("prompt", empty));
  REFRAIN_RETURN_IF_ERROR(
      refused("truncation", [](const OrderedJson& value) { return value == "disabled"; }));
  return refused("top_logprobs", [](const OrderedJson& value) { return value == 0; });
}

// An error of the chat, by the names of this API.
Error renamed(Error error) {
  const std::pair<const char*, const char*> names[] = {
      {"messages", "input"},
      {"max_completion_tokens", "max_output_tokens"},
      {"response_format", "text.format"},
      {"reasoning_effort", "reasoning.effort"}};
  for (const auto& [chat, own] : names) {
    if (error.field != chat) continue;
    if (error.message.starts_with(error.field)) error.message.replace(0, error.field.size(), own);
    error.field = own;
    break;
  }
  return error;
}

}  // namespace

Result<ResponsesRequest> parse_responses_request(const OrderedJson& given,
                                                 const RequestRules& rules,
                                                 const FindResponse& find) {
  if (!given.is_object())
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  ChatBody body(given);
  ResponsesRequest request;
  request.messages = OrderedJson::array();
  const OrderedJson previous = body.take("previous_response_id");
  if (!previous.is_null()) {
    if (!previous.is_string())
      return fail_field("previous_response_id", "previous_response_id must be a string");
    REFRAIN_ASSIGN_OR_RETURN(request.messages, find(previous.get<std::string>()));
  }
  REFRAIN_RETURN_IF_ERROR(refuse_what_is_not_there(body));
  REFRAIN_RETURN_IF_ERROR(add_input(request.messages, body.take("input")));
  const OrderedJson instructions = body.take("instructions");
  if (!instructions.is_null() && !instructions.is_string())
    return fail_field("instructions", "instructions must be a string");
  if (!instructions.is_null()) body.add_message({{"role", "system"}, {"content", instructions}});
  for (const OrderedJson& message : request.messages) body.add_message(message);

  const OrderedJson store = body.take("store"), metadata = body.take("metadata");
  if (!store.is_null() && !store.is_boolean())
    return fail_field("store", "store must be true or false");
  request.store = store.is_null() || store.get<bool>();
  const OrderedJson most = body.take("max_output_tokens"), tools = body.take("tools"),
                    choice = body.take("tool_choice"), text = body.take("text"),
                    reasoning = body.take("reasoning");
  for (const auto& [name, value] : {std::pair{"text", &text}, std::pair{"reasoning", &reasoning}})
    if (!value->is_null() && !value->is_object())
      return fail_field(name, "{} must be an object", name);
  if (!most.is_null()) body.set("max_completion_tokens", most);
  if (!tools.is_null()) {
    REFRAIN_ASSIGN_OR_RETURN(OrderedJson list, chat_tools(tools));
    if (!list.empty()) body.set("tools", std::move(list));
  }
  const bool chooses = !choice.is_null() && (choice != "auto" || !tools.empty());
  if (chooses) body.set("tool_choice", chat_tool_choice(choice));
  if (text.is_object() && text.contains("format"))
    body.set("response_format", chat_format(text["format"]));
  if (const std::string effort = string_in(reasoning, "effort"); !effort.empty())
    body.set("reasoning_effort", effort);
  for (const char* name : {"parallel_tool_calls", "stop"}) body.pass(name);
  body.pass_shared();
  request.told = {{"instructions", instructions},
                  {"max_output_tokens", most},
                  {"metadata", metadata.is_null() ? OrderedJson::object() : metadata},
                  {"previous_response_id", previous},
                  {"reasoning", reasoning},
                  {"store", request.store},
                  {"text", text.is_null() ? OrderedJson{{"format", {{"type", "text"}}}} : text},
                  {"tool_choice", choice.is_null() ? OrderedJson("auto") : choice},
                  {"tools", tools.is_null() ? OrderedJson::array() : tools},
                  {"truncation", "disabled"}};

  auto chat = parse_chat_request(body.chat(), rules);
  if (!chat) return tl::make_unexpected(renamed(chat.error()));
  request.chat = std::move(*chat);
  request.chat.ignored = body.left();
  request.told["parallel_tool_calls"] = request.chat.parallel_tool_calls;
  request.told["temperature"] = request.chat.sampling.temperature;
  const SamplingParams& sampling = request.chat.sampling;
  request.told["top_p"] = sampling.top_p;
  request.told["presence_penalty"] = sampling.presence_penalty;
  request.told["frequency_penalty"] = sampling.frequency_penalty;
  request.told["top_logprobs"] = 0;
  for (const char* name : {"max_tool_calls", "prompt", "user"}) request.told[name] = nullptr;
  return request;
}

}  // namespace refrain
