#pragma once
// A request of another API on its way to a chat's body (/v1/chat/completions): members are taken
// out one by one, and those that nobody takes are the ones that are passed over. Pure values.

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/server/json_fields.h"

namespace refrain {

class ChatBody {
 public:
  explicit ChatBody(OrderedJson given) : given_(std::move(given)) {}

  // The member, out of the body; null when not given.
  OrderedJson take(const char* name);
  // To the chat as it is, or under another name.
  void pass(const char* name) { pass_as(name, name); }
  void pass_as(const char* name, const char* chat_name);
  // What chats and the other APIs take under the same names: the model, sampling, the answer's
  // form. Not `stop`, whose name differs.
  void pass_shared();
  void set(const char* chat_name, OrderedJson value) { chat_[chat_name] = std::move(value); }
  void add_message(OrderedJson message);
  const OrderedJson& chat() const { return chat_; }

  // Names of what nobody took, at most a few.
  std::vector<std::string> left() const;

 private:
  OrderedJson given_;
  OrderedJson chat_ = {{"messages", OrderedJson::array()}};
};

// The string there, or empty.
std::string string_in(const OrderedJson& object, const char* name);

}  // namespace refrain
