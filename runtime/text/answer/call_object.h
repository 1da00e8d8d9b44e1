#pragma once
// One tool call written as a JSON object, {"name": …, "arguments": {…}}, read byte by byte. The
// arguments are told as they come once the name is known. Owned by one answer's parser.

#include <cstdint>
#include <string>

#include "runtime/text/answer/answer_events.h"
#include "runtime/text/answer/json_scanner.h"

namespace refrain::text {

class CallObject {
 public:
  // Marked as a call, an object may have other members and no arguments, which means {}. One that
  // only looks like a call must have them.
  explicit CallObject(bool marked) : marked_(marked) {}

  // kBroken: the byte is not taken, and what `call` has is no call.
  JsonScanner::Step push(char c, OpenCall& call, AnswerEvents& out);

 private:
  enum class Member : uint8_t { kName, kArguments, kOther };
  bool fits(char c);
  bool begin_member();
  bool name_fits(char c);
  bool arguments_fit(char c);
  void tell(OpenCall& call, AnswerEvents& out);

  bool marked_;
  JsonScanner scanner_;
  Member member_ = Member::kOther;
  std::string key_;        // of the present member, as JSON
  std::string name_json_;  // the name's value, as JSON
  std::string name_;
  bool has_arguments_ = false;
  char form_ = 0;       // first byte of the arguments' value: { " or n
  std::string untold_;  // of the arguments
  std::string quoted_;  // arguments written as a JSON string
};

}  // namespace refrain::text
