#include "runtime/text/answer/json_scanner.h"

#include <string_view>

namespace refrain::text {
namespace {

constexpr bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

JsonScanner::Step JsonScanner::push(char c) {
  part_ = open_.size() >= 2 ? Part::kValue : Part::kBetween;
  switch (state_) {
    case State::kString:
    case State::kEscape:
    case State::kHex:
      return text(c);
    case State::kLiteral:
      if (c != *literal_) return Step::kBroken;
      if (top()) part_ = Part::kValue;
      return *++literal_ == '\0' ? go(State::kAfter) : Step::kMore;
    case State::kMinus:
    case State::kZero:
    case State::kWhole:
    case State::kPoint:
    case State::kFraction:
    case State::kExponent:
    case State::kExponentSign:
    case State::kExponentDigits:
      return number(c);
    default:
      break;
  }
  if (is_json_space(c)) return state_ == State::kStart ? Step::kBroken : Step::kMore;
  switch (state_) {
    case State::kStart:
      return c == '{' || c == '[' ? open(c) : Step::kBroken;
    case State::kFirstItem:
      if (c == ']') return close(c);
      [[fallthrough]];
    case State::kValue:
      return begin_value(c);
    case State::kFirstKey:
      if (c == '}') return close(c);
      [[fallthrough]];
    case State::kKey:
      if (c != '"') return Step::kBroken;
      is_key_ = true;
      if (top()) part_ = Part::kKey;
      return go(State::kString);
    case State::kColon:
      return c == ':' ? go(State::kValue) : Step::kBroken;
    default:
      return after(c);
  }
}

JsonScanner::Step JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') return open(c);
  if (top()) part_ = Part::kValue;
  is_key_ = false;
  if (c == '"') return go(State::kString);
  if (c == '-') return go(State::kMinus);
  if (c == '0') return go(State::kZero);
  if (is_digit(c)) return go(State::kWhole);
  switch (c) {
    case 't':
      literal_ = "rue";
      break;
    case 'f':
      literal_ = "alse";
      break;
    case 'n':
      literal_ = "ull";
      break;
    default:
      return Step::kBroken;
  }
  return go(State::kLiteral);
}

JsonScanner::Step JsonScanner::open(char c) {
  if (open_.size() == kMaxDepth) return Step::kBroken;
  if (top()) part_ = Part::kValue;
  open_ += c;
  return go(c == '{' ? State::kFirstKey : State::kFirstItem);
}

JsonScanner::Step JsonScanner::close(char c) {
  if (open_.back() != (c == '}' ? '{' : '[')) return Step::kBroken;
  open_.pop_back();
  state_ = State::kAfter;
  return open_.empty() ? Step::kEnd : Step::kMore;
}

JsonScanner::Step JsonScanner::after(char c) {
  if (c == '}' || c == ']') return close(c);
  if (c != ',') return Step::kBroken;
  return go(open_.back() == '{' ? State::kKey : State::kValue);
}

JsonScanner::Step JsonScanner::text(char c) {
  if (static_cast<unsigned char>(c) < 0x20) return Step::kBroken;
  if (top()) part_ = is_key_ ? Part::kKey : Part::kValue;
  if (state_ == State::kString) {
    if (c == '\\') return go(State::kEscape);
    return c == '"' ? go(is_key_ ? State::kColon : State::kAfter) : Step::kMore;
  }
  if (state_ == State::kEscape) {
    if (c == 'u') {
      hex_ = 4;
      return go(State::kHex);
    }
    const bool known = std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    return known ? go(State::kString) : Step::kBroken;
  }
  if (!is_hex(c)) return Step::kBroken;
  return --hex_ == 0 ? go(State::kString) : Step::kMore;
}

JsonScanner::Step JsonScanner::number(char c) {
  if (top()) part_ = Part::kValue;
  const bool digit = is_digit(c);
  const bool exponent = c == 'e' || c == 'E';
  switch (state_) {
    case State::kMinus:
      if (!digit) return Step::kBroken;
      return go(c == '0' ? State::kZero : State::kWhole);
    case State::kPoint:
      return digit ? go(State::kFraction) : Step::kBroken;
    case State::kExponent:
      if (c == '+' || c == '-') return go(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign:
      return digit ? go(State::kExponentDigits) : Step::kBroken;
    case State::kWhole:
      if (digit) return Step::kMore;
      [[fallthrough]];
    case State::kZero:
      if (c == '.') return go(State::kPoint);
      if (exponent) return go(State::kExponent);
      break;
    case State::kFraction:
      if (digit) return Step::kMore;
      if (exponent) return go(State::kExponent);
      break;
    default:
      if (digit) return Step::kMore;
      break;
  }
  state_ = State::kAfter;  // the number ended before this byte
  return push(c);
}

}  // namespace refrain::text
