#include "runtime/text/answer/mistral.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace refrain::text {
namespace {

using Step = JsonScanner::Step;

constexpr size_t kMaxHead = 512;  // bytes of a name with what follows it

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
           c == ':' || c == '/';
  });
}

}  // namespace

void MistralParser::open(size_t /*marker*/, AnswerEvents& /*out*/) { state_ = State::kOpen; }

bool MistralParser::read(char c, AnswerEvents& out) {
  switch (state_) {
    case State::kOpen:
      if (is_space(c)) return take(c);
      name_.clear();
      list_ = c == '[';
      if (list_) {
        state_ = State::kItem;
        return take(c);
      }
      object_ = CallObject(true);
      state_ = c == '{' ? State::kObject : State::kName;
      return false;
    case State::kItem:
      if (is_space(c)) return take(c);
      object_ = CallObject(true);
      state_ = State::kObject;
      return false;
    case State::kObject:
      return object(c, out);
    case State::kNext:  // , or ]
      if (c == ']') {
        next_.clear();
        end_reading();
        return true;
      }
      if (is_space(c)) {
        next_ += c;
        return true;
      }
      if (c != ',') {
        out.content(std::exchange(next_, {}));
        end_reading();
        return false;
      }
      call_.start(std::exchange(next_, {}));
      state_ = State::kItem;
      return take(c);
    case State::kName:
      return name(c, out);
    case State::kArguments:
      return arguments(c, out);
  }
  return false;
}

bool MistralParser::object(char c, AnswerEvents& out) {
  const Step step = object_.push(c, call_, out);
  if (step == Step::kBroken) return fail(out);
  if (step == Step::kMore) return true;
  if (list_)
    state_ = State::kNext;
  else
    end_reading();
  return true;
}

bool MistralParser::name(char c, AnswerEvents& out) {
  if (c != '{') {
    name_ += c;
    // A name ends at [ or white space at the latest.
    const std::string_view plain = std::string_view(name_).substr(0, name_.find_first_of("[ \n"));
    if (name_.size() > kMaxHead || !is_name(plain)) {
      return fail(out);
    }
    return take(c);
  }
  std::string_view rest = name_;
  const std::string_view plain = rest.substr(0, rest.find_first_of("[ \n"));
  rest.remove_prefix(plain.size());
  const std::string_view id = "[CALL_ID]", args = "[ARGS]";
  if (rest.starts_with(id)) {
    const size_t end = rest.find('[', id.size());
    rest.remove_prefix(std::min(end, rest.size()));
  }
  if (rest.starts_with(args)) rest.remove_prefix(args.size());
  if (!is_name(plain) || rest.find_first_not_of(" \n") != std::string_view::npos) return fail(out);
  call_.begin(plain, out);
  scanner_ = JsonScanner();
  state_ = State::kArguments;
  return false;
}

bool MistralParser::arguments(char c, AnswerEvents& out) {
  const Step step = scanner_.push(c);
  if (step == Step::kBroken) return fail(out);
  take(c);
  call_.arguments({&c, 1}, out);
  if (step == Step::kEnd) {
    call_.end(out);
    end_reading();
  }
  return true;
}

void MistralParser::cut(AnswerEvents& out) {
  if (state_ == State::kNext)
    out.content(std::exchange(next_, {}));
  else
    fail(out);
}

}  // namespace refrain::text
