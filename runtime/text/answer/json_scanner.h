#pragma once
// Follows one JSON object or array byte by byte and says where it ends or stops being JSON
// (RFC 8259). Owned by one answer's parser.

#include <cstdint>
#include <string>

namespace refrain::text {

class JsonScanner {
 public:
  static constexpr size_t kMaxDepth = 64;

  enum class Step : uint8_t { kMore, kEnd, kBroken };
  // kBroken: the byte is not taken.
  Step push(char c);

  // What the last byte belongs to, seen from the outermost object: a member's key or its value,
  // quotes and brackets included.
  enum class Part : uint8_t { kBetween, kKey, kValue };
  Part part() const { return part_; }
  // The last byte ended a string, an object or an array that is the value of an outermost member.
  bool ends_member() const { return part_ == Part::kValue && state_ == State::kAfter && top(); }
  bool ends_key() const { return part_ == Part::kKey && state_ == State::kColon; }
  bool begun() const { return state_ != State::kStart; }

 private:
  enum class State : uint8_t {
    kStart,
    kValue,
    kFirstItem,  // a value or ]
    kFirstKey,   // a key or }
    kKey,
    kColon,
    kAfter,  // a value: , or the end of what it is in
    kString,
    kEscape,
    kHex,
    kLiteral,
    kMinus,
    kZero,
    kWhole,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
  };
  bool top() const { return open_.size() == 1; }
  Step begin_value(char c);
  Step open(char c);
  Step close(char c);
  Step after(char c);
  Step text(char c);
  Step number(char c);
  Step go(State next) {
    state_ = next;
    return Step::kMore;
  }

  State state_ = State::kStart;
  Part part_ = Part::kBetween;
  std::string open_;  // { and [ that are open
  bool is_key_ = false;
  int hex_ = 0;
  const char* literal_ = nullptr;  // what is left of true, false or null
};

}  // namespace refrain::text
