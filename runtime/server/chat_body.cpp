#include "runtime/server/chat_body.h"

#include "runtime/server/ignored_fields.h"

namespace refrain {
namespace {

constexpr const char* kShared[] = {"model",
                                   "stream",
                                   "temperature",
                                   "top_p",
                                   "top_k",
                                   "min_p",
                                   "seed",
                                   "repetition_penalty",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "logit_bias",
                                   "allowed_token_ids",
                                   "bad_words",
                                   "min_tokens",
                                   "ignore_eos",
                                   "stop_token_ids",
                                   "include_stop_str_in_output",
                                   "skip_special_tokens",
                                   "structured_outputs",
                                   "guided_json",
                                   "guided_regex",
                                   "guided_choice",
                                   "guided_grammar",
                                   "include_reasoning",
                                   "chat_template",
                                   "chat_template_kwargs",
                                   "priority",
                                   "cache_salt",
                                   "timeout",
                                   "max_queue_wait"};

}  // namespace

OrderedJson ChatBody::take(const char* name) {
  const auto at = given_.find(name);
  if (at == given_.end()) return nullptr;
  OrderedJson value = std::move(*at);
  given_.erase(at);
  return value;
}

void ChatBody::pass_as(const char* name, const char* chat_name) {
  if (OrderedJson value = take(name); !value.is_null()) set(chat_name, std::move(value));
}

void ChatBody::pass_shared() {
  for (const char* name : kShared) pass(name);
}

void ChatBody::add_message(OrderedJson message) { chat_["messages"].push_back(std::move(message)); }

std::vector<std::string> ChatBody::left() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : given_.items()) {
    if (names.size() == kMostIgnoredFields) break;
    if (!value.is_null()) names.push_back(name.substr(0, kLongestIgnoredField));
  }
  return names;
}

std::string string_in(const OrderedJson& object, const char* name) {
  if (!object.is_object()) return {};
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

}  // namespace refrain
