// The body of /v1/chat/completions.
#include <limits>

#include "runtime/server/api_request.h"
#include "runtime/server/structured_output.h"

namespace refrain {
namespace {

// A call of a tool, or of one tool, that the grammar forces. response_format is that of the text,
// and such an answer has none.
Status force_tool_call(const OrderedJson& body, const std::string& name, ApiRequest& request) {
  OrderedJson others = body;
  others.erase("response_format");
  REFRAIN_ASSIGN_OR_RETURN(const std::string other, structured_output_of(others));
  if (!other.empty())
    return fail_field("tool_choice", "tool_choice and a form of the answer exclude each other");
  REFRAIN_ASSIGN_OR_RETURN(request.sampling.grammar, forced_tool_call(body["tools"], name));
  request.tools = Json(body["tools"]);
  request.forces_tool_call = true;
  return {};
}

// Which tools the answer may call, or must.
Status read_tool_choice(const Json& body, const OrderedJson& ordered, const RequestRules& rules,
                        ApiRequest& request) {
  JsonFields fields(body);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  REFRAIN_RETURN_IF_ERROR(fields.status());
  const Json* tools = fields.get("tools");
  const bool any = tools != nullptr && !tools->empty();
  const Json* choice = fields.get("tool_choice");
  if (choice != nullptr && *choice == "none") return {};
  if (choice != nullptr && *choice != "auto") {
    const bool named = choice->is_object() && text_of(*choice, "type") == "function";
    const std::string name =
        named && choice->contains("function") ? text_of((*choice)["function"], "name") : "";
    if (*choice != "required" && name.empty()) {
      return fail_field("tool_choice",
                        "tool_choice must be \"none\", \"auto\", \"required\" or a function");
    }
    if (any) return force_tool_call(ordered, name, request);
  }
  if (choice != nullptr && !any) {
    return fail_field("tool_choice", "when using tool_choice, tools must be set");
  }
  if (!any) return {};
  if (!rules.auto_tool_choice) {
    return fail_field("tool_choice",
                      "\"auto\" tool choice requires --enable-auto-tool-choice and "
                      "--tool-call-parser to be set");
  }
  request.tools = *tools;
  // Marks of calls are special tokens of some models.
  request.sampling.skip_special_tokens = false;
  return fields.status();
}

}  // namespace

Result<ApiRequest> parse_chat_request(const OrderedJson& ordered, const RequestRules& rules) {
  const Json body(ordered);
  if (!body.is_object()) return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  ApiRequest request;
  request.chat = true;
  REFRAIN_RETURN_IF_ERROR(read_common(body, rules, request));
  REFRAIN_ASSIGN_OR_RETURN(request.chat_input, read_chat_input(ordered, rules.trust_chat_template));
  REFRAIN_ASSIGN_OR_RETURN(request.sampling.grammar, structured_output_of(ordered));
  REFRAIN_RETURN_IF_ERROR(read_tool_choice(body, ordered, rules, request));
  JsonFields fields(body);
  if (request.add_special_tokens)
    fields.fail_on("add_special_tokens", "must be false in chats: the template writes them");
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  request.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, std::numeric_limits<int32_t>::max());
  if (top && !request.logprobs) fields.fail_on("top_logprobs", "needs logprobs to be true");
  if (request.logprobs) request.sampling.logprobs = static_cast<int32_t>(top.value_or(0));
  REFRAIN_RETURN_IF_ERROR(fields.status());
  REFRAIN_RETURN_IF_ERROR(
      read_max_tokens(body, {"max_tokens", "max_completion_tokens"}, rules, request));
  return request;
}

}  // namespace refrain
