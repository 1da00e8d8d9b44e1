#include "runtime/server/stream_events.h"

#include <algorithm>
#include <iterator>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

void append_number(std::string& out, int64_t number) {
  fmt::format_to(std::back_inserter(out), "{}", number);
}

void append_ids(std::string& out, const std::vector<TokenId>& ids) {
  out += '[';
  for (const TokenId id : ids) {
    if (out.back() != '[') out += ',';
    append_number(out, id);
  }
  out += ']';
}

// vLLM's, without details.
void append_usage(std::string& out, const ChoiceText& part) {
  if (!part.usage) return;
  out += R"(,"usage":{"prompt_tokens":)";
  append_number(out, part.usage->prompt_tokens);
  out += R"(,"completion_tokens":)";
  append_number(out, part.usage->completion_tokens);
  out += R"(,"total_tokens":)";
  append_number(out, part.usage->prompt_tokens + part.usage->completion_tokens);
  out += '}';
}

void append_call(std::string& out, const ToolCallPart& call) {
  out += R"({"index":)";
  append_number(out, call.index);
  if (!call.id.empty()) {
    out += R"(,"id":)";
    append_json_string(out, call.id);
    out += R"(,"type":"function","function":{"name":)";
    append_json_string(out, call.name);
    out += ',';
  } else {
    out += R"(,"function":{)";
  }
  out += R"("arguments":)";
  append_json_string(out, call.arguments);
  out += "}}";
}

void append_delta(std::string& out, const ChoiceText& part) {
  out += R"(,"delta":{)";
  const auto member = [&out](const char* name) {
    if (out.back() != '{') out += ',';
    out += fmt::format("\"{}\":", name);
  };
  if (!part.text.empty()) {
    member("content");
    append_json_string(out, part.text);
  }
  if (!part.reasoning.empty()) {
    for (const char* name : {"reasoning", "reasoning_content"}) {
      member(name);
      append_json_string(out, part.reasoning);
    }
  }
  if (!part.calls.empty()) {
    member("tool_calls");
    out += '[';
    for (const ToolCallPart& call : part.calls) {
      if (out.back() != '[') out += ',';
      append_call(out, call);
    }
    out += ']';
  }
  out += '}';
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  const bool plain = std::ranges::all_of(
      text, [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  if (plain) {
    out += '"';
    out += text;
    out += '"';
  } else {
    out += dump(Json(text));
  }
}

StreamEvents::StreamEvents(const AnswerHead& head, const text::Tokenizer& tokenizer)
    : head_(head), tokenizer_(tokenizer), begin_("data: {\"id\":") {
  append_json_string(begin_, head.id);
  begin_ += head.chat ? R"(,"object":"chat.completion.chunk","created":)"
                      : R"(,"object":"text_completion","created":)";
  append_number(begin_, head.created);
  begin_ += R"(,"model":)";
  append_json_string(begin_, head.model);
  begin_ += R"(,"choices":)";
}

std::string StreamEvents::chunk(const ChoiceText& part, int64_t text_offset) const {
  std::string event;
  event.reserve(begin_.size() + part.text.size() + 128);
  event += begin_;
  event += R"([{"index":)";
  append_number(event, part.index);
  if (head_.chat) {
    append_delta(event, part);
  } else {
    event += R"(,"text":)";
    append_json_string(event, part.text);
  }
  if (part.finish == FinishReason::kNone) {
    event += R"(,"finish_reason":null)";
  } else {
    event += R"(,"finish_reason":")";
    event += finish_word(part);
    event += R"(","stop_reason":)";
    event += dump(stop_reason_json(part));
  }
  event += R"(,"logprobs":)";
  if (head_.logprobs) {
    event += dump(logprobs_json(head_, part, text_offset, tokenizer_));
  } else {
    event += "null";
  }
  if (head_.token_ids) {
    if (part.prompt) {
      event += R"(,"prompt_token_ids":)";
      append_ids(event, *part.prompt);
    }
    event += R"(,"token_ids":)";
    append_ids(event, token_ids(part));
  }
  event += "}]";
  append_usage(event, part);
  event += "}\n\n";
  return event;
}

std::string StreamEvents::role(const ChoiceText& choice) const {
  std::string event = begin_ + R"([{"index":)";
  append_number(event, choice.index);
  event += R"(,"delta":{"role":"assistant","content":""},"finish_reason":null,"logprobs":null}])";
  if (choice.prompt) {
    event += R"(,"prompt_token_ids":)";
    append_ids(event, *choice.prompt);
  }
  append_usage(event, choice);
  return event + "}\n\n";
}

std::string StreamEvents::usage(const Usage& usage) const {
  return begin_ + R"([],"usage":)" + dump(usage_json(usage)) + "}\n\n";
}

std::string StreamEvents::error(const std::string& body) { return "data: " + body + "\n\n"; }

std::string StreamEvents::done() { return "data: [DONE]\n\n"; }

}  // namespace refrain
