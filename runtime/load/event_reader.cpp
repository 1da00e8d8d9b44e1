#include "runtime/load/event_reader.h"

#include "runtime/base/json.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

bool holds(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

// Role, text and end of a chat's choice: the first alone announces an answer, no token of it.
bool only_says_the_role(const Json& event) {
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return false;
  const Json& choice = choices->front();
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object() || !delta->contains("role")) return false;
  if (!choice.value("finish_reason", Json()).is_null()) return false;
  for (const auto& [key, value] : delta->items()) {
    const bool nothing = value.is_null() || (value.is_string() && value.get<std::string>().empty());
    if (key != "role" && !nothing && !value.empty()) return false;
  }
  return true;
}

}  // namespace

void EventReader::feed(std::string_view bytes) {
  size_t end = 0;
  while ((end = bytes.find('\n')) != std::string_view::npos) {
    if (rest_.empty()) {
      line(bytes.substr(0, end));
    } else {
      rest_ += bytes.substr(0, end);
      line(rest_);
      rest_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  rest_ += bytes;
}

void EventReader::line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with("data:")) return;  // a comment, or the gap between two events
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]") {
    done_ = true;
  } else {
    event(line);
  }
}

void EventReader::event(std::string_view data) {
  if (holds(data, "\"usage\"") || holds(data, "\"error\"") || holds(data, "\"role\"")) {
    const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      error_ = "an event that is no JSON object";
      return;
    }
    if (const auto error = json.find("error"); error != json.end() && !error->is_null()) {
      error_ = error_text(data);
      return;
    }
    if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
      counted_ = true;
      input_tokens_ = usage->value("prompt_tokens", input_tokens_);
      output_tokens_ = usage->value("completion_tokens", output_tokens_);
    }
    const auto choices = json.find("choices");
    if (choices == json.end() || !choices->is_array() || choices->empty()) return;
    if (only_says_the_role(json)) return;
  }
  ++events_;
  on_tokens_();
}

std::string error_text(std::string_view body) {
  constexpr size_t kMost = 200;
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    const Json& error = json.contains("error") ? json["error"] : json;
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>().substr(0, kMost);
    }
    if (error.is_string()) return error.get<std::string>().substr(0, kMost);
  }
  return std::string(body.substr(0, kMost));
}

}  // namespace refrain
