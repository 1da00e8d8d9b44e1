// The body of /v1/chat/completions.
#include "runtime/server/api_request.h"

namespace refrain {
namespace {

// Which tools the answer may call; what needs a grammar is refused.
Status read_tool_choice(const Json& body, const RequestRules& rules, ApiRequest& request) {
  JsonFields fields(body);
  const Json* tools = fields.get("tools");
  const bool any = tools != nullptr && !tools->empty();
  const Json* choice = fields.get("tool_choice");
  if (choice != nullptr && *choice == "none") return {};
  if (choice != nullptr && *choice != "auto") {
    const bool named = choice->is_object() && text_of(*choice, "type") == "function";
    if (*choice == "required" || named) {
      return fail_field("tool_choice",
                        "tool_choice {} needs structured output, which this server does not have "
                        "yet; \"auto\" and \"none\" are supported",
                        named ? "of a named function" : "\"required\"");
    }
    return fail_field("tool_choice",
                      "tool_choice must be \"none\", \"auto\", \"required\" or a function");
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
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
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
  REFRAIN_RETURN_IF_ERROR(read_tool_choice(body, rules, request));
  JsonFields fields(body);
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  request.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top && !request.logprobs) fields.fail_on("top_logprobs", "needs logprobs to be true");
  if (request.logprobs) request.sampling.logprobs = static_cast<int32_t>(top.value_or(0));
  REFRAIN_RETURN_IF_ERROR(fields.status());
  REFRAIN_RETURN_IF_ERROR(
      read_max_tokens(body, {"max_tokens", "max_completion_tokens"}, rules, request));
  return request;
}

}  // namespace refrain
