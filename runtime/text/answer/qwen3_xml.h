#pragma once
// Qwen3-Coder, Qwen3.5: <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> …
// </function> </tool_call>. Values are plain text; the request's tools say what they are in JSON.

#include "runtime/base/json.h"
#include "runtime/text/answer/marked_call_parser.h"

namespace refrain::text {

class Qwen3XmlParser final : public MarkedCallParser {
 public:
  explicit Qwen3XmlParser(const nlohmann::json& tools);

 private:
  enum class State : uint8_t { kOpen, kName, kBody, kKey, kValue, kClose };
  void open(size_t marker, AnswerEvents& out) override;
  bool read(char c, AnswerEvents& out) override;
  void read_piece(std::string_view& text, AnswerEvents& out) override;
  void cut(AnswerEvents& out) override;
  bool function(char c, AnswerEvents& out);
  bool name(char c, AnswerEvents& out);
  bool body(char c, AnswerEvents& out);
  bool close(char c, AnswerEvents& out);
  void begin_value(AnswerEvents& out);
  void value(std::string_view text, AnswerEvents& out);
  void end_value(AnswerEvents& out);
  void argue(std::string_view json, AnswerEvents& out) { call_.arguments(json, out); }

  nlohmann::json properties_;  // {function: its parameters' schemas by name}
  State state_ = State::kOpen;
  MarkerSearch value_end_{{"</parameter>"}};
  ExpectedWord word_;
  std::string name_;      // of the function
  std::string key_;       // of the parameter
  std::string types_;     // of the value: JSON schema's names, each between two spaces
  bool streams_ = false;  // the value is a string: passed on as it comes
  bool at_start_ = true;  // nothing of the value has come
  std::string value_;     // of it, what is not passed on
  bool first_ = true;     // parameter of the call
};

}  // namespace refrain::text
