#include "runtime/text/regex_syntax.h"

#include <cctype>
#include <vector>

#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

// Members of classes, without the brackets, so that they can stand inside another class.
constexpr std::string_view kSpace =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
constexpr std::string_view kCategories =
    " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So "
    "Z Zl Zp Zs ";
constexpr size_t kMaxPattern = 16384;
constexpr size_t kMaxGroups = 64;

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (in_.size() > kMaxPattern)
      return fail(ErrorCode::kInvalidArgument, "the regex is longer than {} bytes", kMaxPattern);
    if (!is_valid_utf8(in_))
      return fail(ErrorCode::kInvalidArgument, "the regex is not valid UTF-8");
    while (at_ < in_.size() && error_.empty()) step();
    if (error_.empty() && !groups_.empty()) error_ = "a '(' without its ')'";
    if (!error_.empty())
      return fail(ErrorCode::kInvalidArgument, "unsupported regex construct: {} (in '{}')", error_,
                  in_);
    return std::move(out_);
  }

 private:
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void refuse(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }

  void step() {
    const char c = in_[at_];
    switch (c) {
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '[':
        return character_class();
      case '*':
      case '+':
      case '?':
        return quantifier();
      case '{':
        return interval();
      case '\\':
        atom_ = out_.size();
        return escape(false, out_);
      case '|':
      case '^':
      case '$':
        out_.push_back(c);
        ++at_;
        atom_ = out_.size();
        return;
      default:
        break;
    }
    atom_ = out_.size();
    const Utf8Unit unit = read_utf8(in_, at_);
    out_.append(in_.substr(at_, unit.length));
    at_ += unit.length;
  }

  void open_group() {
    static constexpr std::string_view kOpeners[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?-i:", "(?>"};
    if (groups_.size() >= kMaxGroups) return refuse("groups nested too deeply");
    if (next_is("(?i)")) {  // at the start both dialects mean the whole pattern
      if (at_ != 0) return refuse("'(?i)' after the start of the pattern");
      out_ += "(?i)";
      at_ += 4;
      return;
    }
    std::string_view opener = "(";
    if (next_is("(?")) {
      opener = {};
      for (const auto candidate : kOpeners)
        if (next_is(candidate)) opener = candidate;
      if (opener.empty()) return refuse("group '" + std::string(in_.substr(at_, 4)) + "'");
    } else if (next_is("(*")) {
      return refuse("'(*'");
    }
    groups_.push_back(out_.size());
    out_ += opener == "(" ? "(?:" : opener;
    at_ += opener.size();
    atom_ = out_.size();
  }

  void close_group() {
    if (groups_.empty()) return refuse("a ')' without its '('");
    out_.push_back(')');
    ++at_;
    atom_ = groups_.back();
    groups_.pop_back();
  }

  void quantifier() {
    out_.push_back(in_[at_++]);
    if (at_ < in_.size() && (in_[at_] == '?' || in_[at_] == '+')) out_.push_back(in_[at_++]);
  }

  // {n}, {n,}, {n,m}, {,m}; anything else is a plain brace. A '+' after it repeats the interval (in
  // PCRE2 it would make it possessive).
  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() &&
           (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ','))
      ++end;
    const std::string_view body = in_.substr(at_ + 1, end - at_ - 1);
    if (end >= in_.size() || in_[end] != '}' || body.empty() || body == ",") {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    if (body.size() > 9) return refuse("repeat count '" + std::string(body) + "'");
    out_.push_back('{');
    if (body.front() == ',') out_.push_back('0');
    out_ += body;
    out_.push_back('}');
    at_ = end + 1;
    if (at_ < in_.size() && in_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    } else if (at_ < in_.size() && in_[at_] == '?') {
      out_.push_back(in_[at_++]);
    }
  }

  // Appends the translation of the escape at at_ to `out`; in_class: between brackets.
  void escape(bool in_class, std::string& out) {
    if (at_ + 1 >= in_.size()) return refuse("a lone '\\' at the end");
    const char c = in_[at_ + 1];
    const auto members = [&](std::string_view set, bool negated) {
      if (in_class && negated) return refuse("'\\W' in a class");
      out += in_class ? std::string(set) : (negated ? "[^" : "[") + std::string(set) + "]";
      at_ += 2;
    };
    switch (c) {
      case 's':
        return members(kSpace, false);
      case 'S':
        if (!in_class) return members(kSpace, true);
        out += "\\S";
        at_ += 2;
        return;
      case 'w':
        return members(kWord, false);
      case 'W':
        return members(kWord, true);
      case 'h':
        return members("0-9a-fA-F", false);
      case 'v':
        out += "\\x0B";
        at_ += 2;
        return;
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'e':
      case 'a':
        out += in_.substr(at_, 2);
        at_ += 2;
        return;
      case 'A':
      case 'z':
      case 'Z':
      case 'b':
      case 'B':
        if (in_class) return refuse(std::string("'\\") + c + "' in a class");
        return anchor(c, out);
      case 'p':
      case 'P':
        return property(out);
      case 'x':
      case 'u':
        return hex(c, out);
      default:
        break;
    }
    if (!std::ispunct(static_cast<unsigned char>(c))) return refuse(std::string("'\\") + c + "'");
    out += in_.substr(at_, 2);
    at_ += 2;
  }

  void anchor(char c, std::string& out) {
    const std::string word = "[" + std::string(kWord) + "]";
    if (c == 'b') {
      out += "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
    } else if (c == 'B') {
      out += "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
    } else {
      out += std::string("\\") + c;
    }
    at_ += 2;
  }

  void property(std::string& out) {
    bool negated = in_[at_ + 1] == 'P';
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos)
      return refuse("'\\p' without {}");
    std::string name(in_.substr(at_ + 3, close - at_ - 3));
    if (!name.empty() && name.front() == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    for (const char c : name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_')
        return refuse("'\\p{" + name + "}'");
    const bool is_category = kCategories.find(" " + name + " ") != std::string_view::npos;
    if (name.size() <= 2 && !is_category) return refuse("'\\p{" + name + "}'");
    // A longer name is a script; PCRE2 would read it as Script_Extensions.
    out += (negated ? "\\P{" : "\\p{") + (is_category ? name : "sc:" + name) + "}";
    at_ = close + 1;
  }

  void hex(char kind, std::string& out) {
    size_t at = at_ + 2;
    const bool braces = kind == 'x' && at < in_.size() && in_[at] == '{';
    if (braces) ++at;
    const size_t most = braces ? 6 : kind == 'u' ? 4 : 2;
    std::string digits;
    while (at < in_.size() && digits.size() < most &&
           std::isxdigit(static_cast<unsigned char>(in_[at])))
      digits.push_back(in_[at++]);
    if (digits.empty() || (kind == 'u' && digits.size() != 4) ||
        (braces && (at >= in_.size() || in_[at++] != '}')))
      return refuse("a malformed \\x or \\u");
    if (kind == 'x' && !braces && std::stoul(digits, nullptr, 16) > 0x7F)
      return refuse("'\\x" + digits + "' (a single byte)");
    out += "\\x{" + digits + "}";
    at_ = at;
  }

  // [...]; of the set operations only [A&&[B]] and [A&&[^B]], which real tokenizers use.
  void character_class() {
    atom_ = out_.size();
    std::string left;
    if (!class_members(left)) return;
    if (!next_is("&&")) {
      if (at_ >= in_.size()) return refuse("a '[' without its ']'");
      ++at_;
      out_ += left + "]";
      return;
    }
    at_ += 2;
    std::string right;
    if (left.starts_with("[^") || at_ >= in_.size() || in_[at_] != '[')
      return refuse("'&&' other than [A&&[B]]");
    if (!class_members(right) || !next_is("]]")) return refuse("'&&' other than [A&&[B]]");
    at_ += 2;
    const bool negated = right.starts_with("[^");
    out_ += negated ? "(?:(?![" + right.substr(2) + "])" : "(?:(?=" + right + "])";
    out_ += left + "])";
  }

  // Reads "[" and members into `out` (with the opening bracket) up to "]" or "&&".
  bool class_members(std::string& out) {
    out = "[";
    ++at_;
    if (next_is("^")) {
      out.push_back('^');
      ++at_;
    }
    bool first = true;
    while (at_ < in_.size() && error_.empty()) {
      if (next_is("&&") || (in_[at_] == ']' && !first)) return true;
      first = false;
      if (in_[at_] == '\\') {
        escape(true, out);
      } else if (in_[at_] == '[') {
        refuse(next_is("[:") ? "a POSIX bracket" : "a class inside a class");
      } else {
        const Utf8Unit unit = read_utf8(in_, at_);
        if (in_[at_] == ']') out.push_back('\\');
        out.append(in_.substr(at_, unit.length));
        at_ += unit.length;
      }
    }
    refuse("a '[' without its ']'");
    return false;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where the last repeatable item begins in out_
  std::vector<size_t> groups_;  // where each open group begins in out_
  std::string error_;
};

}  // namespace

Result<std::string> oniguruma_to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace refrain::text
