#pragma once
// What a chat gives to its template: messages as templates expect them, tools, and the fields that
// steer the rendering. A pure function of JSON; shared by chats, /tokenize and `refrain generate`.

#include <string>

#include "runtime/base/result.h"
#include "runtime/server/json_fields.h"

namespace refrain {

struct ChatInput {
  OrderedJson variables;  // messages, tools, add_generation_prompt, chat_template_kwargs' members
  std::string chat_template;            // the request's own; empty: the model's
  bool continue_final_message = false;  // the prompt ends inside the last message's text
};

// Tool calls of the history get their arguments as objects, contents become text. Errors name the
// field. A chat_template is taken only where `trust_chat_template` says so.
Result<ChatInput> read_chat_input(const OrderedJson& body, bool trust_chat_template);

}  // namespace refrain
