#include "runtime/server/ignored_fields.h"

#include "runtime/base/log.h"

namespace refrain {
namespace {

constexpr size_t kMostInAll = 256;

const std::set<std::string> kBoth = {"add_special_tokens",
                                     "allowed_token_ids",
                                     "bad_words",
                                     "best_of",
                                     "cache_salt",
                                     "frequency_penalty",
                                     "ignore_eos",
                                     "include_stop_str_in_output",
                                     "logit_bias",
                                     "logprobs",
                                     "max_queue_wait",
                                     "max_tokens",
                                     "min_p",
                                     "min_tokens",
                                     "model",
                                     "n",
                                     "presence_penalty",
                                     "priority",
                                     "prompt_logprobs",
                                     "repetition_penalty",
                                     "response_format",
                                     "structured_outputs",
                                     "guided_json",
                                     "guided_regex",
                                     "guided_choice",
                                     "guided_grammar",
                                     "return_token_ids",
                                     "return_tokens_as_token_ids",
                                     "seed",
                                     "skip_special_tokens",
                                     "stop",
                                     "stop_token_ids",
                                     "stream",
                                     "stream_options",
                                     "temperature",
                                     "timeout",
                                     "top_k",
                                     "top_p",
                                     "truncate_prompt_tokens",
                                     "use_beam_search"};
const std::set<std::string> kCompletion = {"echo", "prompt", "suffix"};
const std::set<std::string> kChat = {"add_generation_prompt",
                                     "chat_template",
                                     "chat_template_kwargs",
                                     "continue_final_message",
                                     "documents",
                                     "include_reasoning",
                                     "max_completion_tokens",
                                     "messages",
                                     "parallel_tool_calls",
                                     "reasoning_effort",
                                     "tool_choice",
                                     "tools",
                                     "top_logprobs"};

}  // namespace

std::vector<std::string> ignored_fields(const Json& body, bool chat) {
  std::vector<std::string> names;
  for (const auto& [name, value] : body.items()) {
    if (names.size() == kMostIgnoredFields) break;
    if (value.is_null() || kBoth.contains(name) || (chat ? kChat : kCompletion).contains(name))
      continue;
    names.push_back(name.substr(0, kLongestIgnoredField));
  }
  return names;
}

int IgnoredFields::say(const std::vector<std::string>& names) {
  int said = 0;
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    if (said_.size() == kMostInAll || !said_.insert(name).second) continue;
    // As JSON, so that no name writes a line of its own.
    log::warn("requests have the field {}, which is ignored (said once)",
              Json(name).dump(-1, ' ', true, Json::error_handler_t::replace));
    ++said;
  }
  return said;
}

}  // namespace refrain
