#include "runtime/server/chat_input.h"

#include <algorithm>

namespace refrain {
namespace {

// Absent and null mean "not given".
const OrderedJson* given(const OrderedJson& object, const char* name) {
  const auto field = object.find(name);
  return field == object.end() || field->is_null() ? nullptr : &*field;
}

Result<bool> flag(const OrderedJson& body, const char* name, bool fallback) {
  const OrderedJson* value = given(body, name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return fail_field(name, "{} must be true or false", name);
  return value->get<bool>();
}

// The text of a part, or null where it is none.
const OrderedJson* text_of_part(const OrderedJson& part) {
  if (part.is_string()) return &part;
  const OrderedJson* type = part.is_object() ? given(part, "type") : nullptr;
  if (type == nullptr || !type->is_string()) return nullptr;
  const bool refusal = *type == "refusal";
  if (!refusal && *type != "text" && *type != "input_text" && *type != "output_text")
    return nullptr;
  const OrderedJson* text = given(part, refusal ? "refusal" : "text");
  return text != nullptr && text->is_string() ? text : nullptr;
}

// Parts become one text, a line each, as templates of text models read it and vLLM makes it.
Result<std::string> joined_text(const OrderedJson& parts, size_t message) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson* part = text_of_part(parts[i]);
    if (part == nullptr) {
      return fail_field(
          "messages", "messages[{}].content[{}] is no text; only parts of type text are supported",
          message, i);
    }
    if (i > 0) text += '\n';
    text += part->get_ref<const std::string&>();
  }
  return text;
}

// OpenAI's JSON text becomes the object that templates print; no arguments are an empty one.
Result<OrderedJson> parsed_arguments(const OrderedJson* arguments, const std::string& where,
                                     JsonAllowance& allowance) {
  if (arguments == nullptr || *arguments == "") return OrderedJson::object();
  if (!arguments->is_string()) return *arguments;
  auto parsed = parse_ordered_json(arguments->get_ref<const std::string&>(), allowance);
  if (parsed) return parsed;
  return fail_field("messages", "{}.function.arguments: {}", where, parsed.error().message);
}

Status read_tool_calls(OrderedJson& message, size_t i, JsonAllowance& allowance) {
  const OrderedJson* calls = given(message, "tool_calls");
  if (calls == nullptr || (calls->is_array() && calls->empty())) {
    message.erase("tool_calls");
    return {};
  }
  if (!calls->is_array())
    return fail_field("messages", "messages[{}].tool_calls must be a list", i);
  OrderedJson list = OrderedJson::array();
  for (size_t k = 0; k < calls->size(); ++k) {
    const std::string where = fmt::format("messages[{}].tool_calls[{}]", i, k);
    OrderedJson call = (*calls)[k];
    const OrderedJson* function = call.is_object() ? given(call, "function") : nullptr;
    if (function == nullptr || !function->is_object() || given(*function, "name") == nullptr) {
      return fail_field("messages", "{} must have a function with a name", where);
    }
    REFRAIN_ASSIGN_OR_RETURN(OrderedJson arguments,
                             parsed_arguments(given(*function, "arguments"), where, allowance));
    call["function"]["arguments"] = std::move(arguments);
    list.push_back(std::move(call));
  }
  message["tool_calls"] = std::move(list);
  return {};
}

Result<OrderedJson> read_message(const OrderedJson& message, size_t i, JsonAllowance& allowance) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
    return fail_field("messages", "messages[{}] must be an object with a role", i);
  }
  OrderedJson copy = message;
  if (copy.contains("tool_calls")) REFRAIN_RETURN_IF_ERROR(read_tool_calls(copy, i, allowance));
  if (!copy.contains("content") && copy["role"] != "assistant") {
    return fail_field("messages", "messages[{}] has no content", i);
  }
  OrderedJson& content = copy["content"];
  if (content.is_array()) {
    REFRAIN_ASSIGN_OR_RETURN(content, joined_text(OrderedJson(content), i));
  } else if (content.is_null()) {
    content = "";
  } else if (!content.is_string()) {
    return fail_field("messages", "messages[{}].content must be a string or a list of parts", i);
  }
  return copy;
}

Status read_tools(const OrderedJson& body, OrderedJson& variables) {
  const OrderedJson* tools = given(body, "tools");
  if (tools == nullptr) return {};
  if (!tools->is_array()) return fail_field("tools", "tools must be a list");
  for (size_t i = 0; i < tools->size(); ++i) {
    const OrderedJson& tool = (*tools)[i];
    const OrderedJson* function = tool.is_object() ? given(tool, "function") : nullptr;
    const OrderedJson* name =
        function != nullptr && function->is_object() ? given(*function, "name") : nullptr;
    if (name == nullptr || !name->is_string()) {
      return fail_field("tools", "tools[{}] must have a function with a name", i);
    }
  }
  const OrderedJson* choice = given(body, "tool_choice");
  const bool none = choice != nullptr && *choice == "none";
  if (!tools->empty() && !none) variables["tools"] = *tools;
  return {};
}

Status read_kwargs(const OrderedJson& body, OrderedJson& variables) {
  const OrderedJson* extra = given(body, "chat_template_kwargs");
  if (extra == nullptr) return {};
  if (!extra->is_object()) {
    return fail_field("chat_template_kwargs", "chat_template_kwargs must be an object");
  }
  for (const auto& [key, value] : extra->items()) {
    for (const char* own : {"messages", "chat_template", "continue_final_message"}) {
      if (key == own) {
        return fail_field("chat_template_kwargs", "chat_template_kwargs cannot set {}", own);
      }
    }
    variables[key] = value;
  }
  return {};
}

Status read_rendering(const OrderedJson& body, bool trust_chat_template, ChatInput& input) {
  REFRAIN_ASSIGN_OR_RETURN(input.continue_final_message,
                           flag(body, "continue_final_message", false));
  REFRAIN_ASSIGN_OR_RETURN(const bool add,
                           flag(body, "add_generation_prompt", !input.continue_final_message));
  if (add && input.continue_final_message) {
    return fail_field("continue_final_message",
                      "continue_final_message and add_generation_prompt exclude each other");
  }
  input.variables["add_generation_prompt"] = add;
  const OrderedJson* own = given(body, "chat_template");
  if (own == nullptr) return {};
  if (!own->is_string()) return fail_field("chat_template", "chat_template must be a string");
  if (!trust_chat_template) {
    return fail_field("chat_template",
                      "this server takes no chat_template from requests; it would with "
                      "--trust-request-chat-template");
  }
  input.chat_template = own->get<std::string>();
  return {};
}

}  // namespace

Result<ChatInput> read_chat_input(const OrderedJson& body, bool trust_chat_template) {
  const auto at = body.find("messages");
  if (at == body.end() || !at->is_array() || at->empty()) {
    return fail_field("messages", "messages must be a list of at least one message");
  }
  ChatInput input;
  input.variables = {{"messages", OrderedJson::array()}};
  JsonAllowance allowance;  // of all arguments
  for (size_t i = 0; i < at->size(); ++i) {
    REFRAIN_ASSIGN_OR_RETURN(OrderedJson message, read_message((*at)[i], i, allowance));
    input.variables["messages"].push_back(std::move(message));
  }
  REFRAIN_RETURN_IF_ERROR(read_rendering(body, trust_chat_template, input));
  REFRAIN_RETURN_IF_ERROR(read_tools(body, input.variables));
  for (const char* name : {"documents", "reasoning_effort"}) {
    if (const OrderedJson* value = given(body, name)) input.variables[name] = *value;
  }
  REFRAIN_RETURN_IF_ERROR(read_kwargs(body, input.variables));
  return input;
}

}  // namespace refrain
