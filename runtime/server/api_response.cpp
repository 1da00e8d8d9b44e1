#include "runtime/server/api_response.h"

#include <algorithm>
#include <utility>

#include "runtime/server/prompt_logprobs.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json finish_json(const ChoiceText& choice) {
  if (choice.finish == FinishReason::kNone) return nullptr;
  return finish_word(choice);
}

// Without an answer's text, content is null where something else was said.
Json message_json(const ChoiceText& choice) {
  Json message = {{"role", "assistant"}, {"content", choice.text}};
  if (choice.text.empty() && !(choice.reasoning.empty() && choice.calls.empty()))
    message["content"] = nullptr;
  if (!choice.reasoning.empty()) {
    message["reasoning"] = choice.reasoning;
    message["reasoning_content"] = choice.reasoning;
  }
  for (const ToolCallPart& call : choice.calls) {
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

std::string token_by_id(TokenId token) { return fmt::format("token_id:{}", token); }

std::string token_name(const AnswerHead& head, TokenId token, const text::Tokenizer& tokenizer) {
  return head.tokens_as_ids ? token_by_id(token) : tokenizer.token_to_string(token);
}

Json chat_token(const AnswerHead& head, TokenId token, float logprob,
                const text::Tokenizer& tokenizer) {
  return {{"token", token_name(head, token, tokenizer)},
          {"logprob", finite(logprob)},
          {"bytes", bytes_json(tokenizer.token_bytes(token))}};
}

Json chat_logprobs(const AnswerHead& head, const ChoiceText& choice,
                   const text::Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const TokenOutput& output : choice.tokens) {
    Json entry = chat_token(head, output.token, output.logprob, tokenizer);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : output.top) {
      entry["top_logprobs"].push_back(chat_token(head, top.token, top.logprob, tokenizer));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

// By the tokens' text, the sampled one always among them. Of tokens with one text the further ones
// go by their ids.
Json top_of_completion(const AnswerHead& head, const TokenOutput& output,
                       const text::Tokenizer& tokenizer) {
  Json top = {{token_name(head, output.token, tokenizer), finite(output.logprob)}};
  for (const TokenLogprob& other : output.top) {
    if (other.token == output.token) continue;
    std::string name = token_name(head, other.token, tokenizer);
    if (top.contains(name)) name = token_by_id(other.token);
    top[name] = finite(other.logprob);
  }
  return top;
}

Json completion_logprobs(const AnswerHead& head, const ChoiceText& choice, int64_t offset,
                         const text::Tokenizer& tokenizer) {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  const auto add = [&](const TokenOutput& output, bool told) {
    tokens.push_back(token_name(head, output.token, tokenizer));
    values.push_back(told ? Json(finite(output.logprob)) : Json());
    tops.push_back(told ? top_of_completion(head, output, tokenizer) : Json());
    offsets.push_back(offset);
    offset += count_characters(tokenizer.token_bytes(output.token));
  };
  if (head.echo && choice.scores) {  // of the first token nothing is known
    bool told = false;
    for (const TokenOutput& output :
         echoed_tokens(*choice.prompt, *choice.scores, head.num_logprobs))
      add(output, std::exchange(told, true));
  }
  for (const TokenOutput& output : choice.tokens) add(output, true);
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

Json logprobs_json(const AnswerHead& head, const ChoiceText& choice, int64_t offset,
                   const text::Tokenizer& tokenizer) {
  if (!head.logprobs) return nullptr;
  return head.chat ? chat_logprobs(head, choice, tokenizer)
                   : completion_logprobs(head, choice, offset, tokenizer);
}

const char* finish_word(const ChoiceText& choice) {
  const bool calls = choice.called && choice.finish == FinishReason::kStop;
  return calls ? "tool_calls" : to_string(choice.finish);
}

Json stop_reason_json(const ChoiceText& choice) {
  if (choice.stop_token) return *choice.stop_token;
  if (choice.stop_reason.empty()) return nullptr;
  return choice.stop_reason;
}

std::vector<TokenId> token_ids(const ChoiceText& choice) {
  std::vector<TokenId> ids;
  for (const TokenOutput& output : choice.tokens) ids.push_back(output.token);
  return ids;
}

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kUnauthenticated:
      return 401;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kTooLarge:
      return 413;
    case ErrorCode::kOverloaded:
      return 429;
    case ErrorCode::kCancelled:
      return 499;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDeadline:
      return 504;
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool wants_page(const HttpRequest& request) {
  const auto accept = request.headers.find("accept");
  return accept != request.headers.end() && accept->second.find("text/html") != std::string::npos;
}

Json error_json(int status, const Error& error) {
  return {{"type", "error"},  // Anthropic's; the rest is OpenAI's
          {"error",
           {{"message", error.message},
            {"type", error_type(status)},
            {"param", error.field.empty() ? Json(nullptr) : Json(error.field)},
            {"code", status}}}};
}

std::string error_body(int status, const std::string& message) {
  return dump(error_json(status, Error{ErrorCode::kInternal, message, {}}));
}

HttpReply error_reply(const Error& error, Engine& engine) {
  constexpr double kLongest = 60;  // seconds
  const int status = http_status(error.code);
  HttpReply reply{status, "application/json", dump(error_json(status, error)), {}};
  if (status == 429 || status == 503) {
    const double ahead = engine.admission().predicted_wait_seconds - engine.config().max_queue_wait;
    const auto seconds = static_cast<int>(std::ceil(std::clamp(ahead, 1.0, kLongest)));
    reply.headers.emplace_back("Retry-After", std::to_string(seconds));
  }
  return reply;
}

Json prompt_logprobs_json(const AnswerHead& head, const ChoiceText& choice,
                          const text::Tokenizer& tokenizer) {
  if (!choice.scores) return nullptr;
  return prompt_logprobs_json(*choice.prompt, *choice.scores, head.num_prompt_logprobs, tokenizer);
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json whole_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices,
                  const Usage& usage, const text::Tokenizer& tokenizer) {
  Json answer = {{"id", head.id},
                 {"object", head.chat ? "chat.completion" : "text_completion"},
                 {"created", head.created},
                 {"model", head.model},
                 {"choices", Json::array()}};
  // Where vLLM has them: one chat has one prompt, a completion's choices may have several.
  if (head.token_ids && head.chat) answer["prompt_token_ids"] = *choices.front().prompt;
  const bool tells_prompt = head.num_prompt_logprobs >= 0;
  if (tells_prompt && head.chat)
    answer["prompt_logprobs"] = prompt_logprobs_json(head, choices.front(), tokenizer);
  for (const ChoiceText& choice : choices) {
    Json entry = {{"index", choice.index},
                  {"finish_reason", finish_json(choice)},
                  {"stop_reason", stop_reason_json(choice)},
                  {"logprobs", logprobs_json(head, choice, 0, tokenizer)}};
    if (head.chat) {
      entry["message"] = message_json(choice);
    } else {
      entry["text"] = choice.text;
      if (head.token_ids) entry["prompt_token_ids"] = *choice.prompt;
      if (tells_prompt) entry["prompt_logprobs"] = prompt_logprobs_json(head, choice, tokenizer);
    }
    if (head.token_ids) entry["token_ids"] = token_ids(choice);
    answer["choices"].push_back(std::move(entry));
  }
  answer["usage"] = usage_json(usage);
  return answer;
}

int64_t count_characters(const std::string& utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
}

}  // namespace refrain
