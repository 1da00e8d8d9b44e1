#include "runtime/text/answer/call_object.h"

#include <utility>

#include "runtime/base/json.h"
#include "runtime/text/json_reader.h"

namespace refrain::text {
namespace {

using Json = nlohmann::json;
using Step = JsonScanner::Step;
using Part = JsonScanner::Part;

constexpr size_t kMaxShort = 256;  // bytes of a name or a key, as JSON

// The text of a JSON string; empty where it is none.
std::string string_of(const std::string& json) {
  const Json value = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

Step CallObject::push(char c, OpenCall& call, AnswerEvents& out) {
  if (!scanner_.begun() && c != '{') return Step::kBroken;
  const Step step = scanner_.push(c);
  if (step == Step::kBroken || !fits(c)) return Step::kBroken;
  if (step == Step::kEnd) {
    if (name_.empty() || (!marked_ && !has_arguments_)) return Step::kBroken;
    if (form_ == 0 || form_ == 'n') untold_ = "{}";
  }
  call.take({&c, 1});
  tell(call, out);
  if (step == Step::kEnd) call.end(out);
  return step;
}

bool CallObject::fits(char c) {
  if (scanner_.part() == Part::kKey) {
    key_ += c;
    if (key_.size() > kMaxShort) return false;
    return !scanner_.ends_key() || begin_member();
  }
  if (scanner_.part() != Part::kValue || member_ == Member::kOther) return true;
  return member_ == Member::kName ? name_fits(c) : arguments_fit(c);
}

bool CallObject::begin_member() {
  const std::string key = std::exchange(key_, {});
  member_ = Member::kOther;
  if (key == R"("name")") {
    member_ = Member::kName;
    return name_json_.empty();  // not twice
  }
  if (key == R"("arguments")" || key == R"("parameters")") {
    member_ = Member::kArguments;
    return !std::exchange(has_arguments_, true);
  }
  return marked_ || key == R"("type")" || key == R"("id")";
}

bool CallObject::name_fits(char c) {
  name_json_ += c;
  if (name_json_.front() != '"' || name_json_.size() > kMaxShort) return false;
  if (scanner_.ends_member()) name_ = string_of(name_json_);
  return !scanner_.ends_member() || !name_.empty();
}

bool CallObject::arguments_fit(char c) {
  if (form_ == 0) form_ = c;
  if (form_ == '{') {
    untold_ += c;
  } else if (form_ == '"') {
    quoted_ += c;
    if (!scanner_.ends_member()) return true;
    untold_ = string_of(std::exchange(quoted_, {}));
    // As deep as arguments that are an object: writers of answers copy and print it level by level.
    return untold_.starts_with('{') && check_json_depth(untold_, "") && Json::accept(untold_);
  }
  return form_ == '{' || form_ == 'n';
}

void CallObject::tell(OpenCall& call, AnswerEvents& out) {
  if (name_.empty() || untold_.empty()) return;
  if (!call.begun()) call.begin(name_, out);
  call.arguments(untold_, out);
  untold_.clear();
}

}  // namespace refrain::text
