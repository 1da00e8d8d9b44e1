#pragma once
// How an answer is written for its client, whole or as the events of a stream: one for each shape
// of API. Owned by a session, under its lock.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/server/api_request.h"
#include "runtime/server/api_response.h"

namespace refrain {

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The first events of a choice's stream; of the choice there are index, prompt and usage.
  virtual std::string begin(const ChoiceText& choice) = 0;
  // `text_offset`: characters of this choice written before.
  virtual std::string part(const ChoiceText& part, int64_t text_offset) = 0;
  virtual std::string end(const Usage& usage) = 0;
  // The stream ends with an error; `body`: as an answer would have it.
  virtual std::string error(const std::string& body) = 0;

  // The body of an answer that is no stream.
  virtual std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) = 0;
};

// Head, request and tokenizer outlive the writer.
using MakeWriter = std::function<std::unique_ptr<AnswerWriter>(const AnswerHead&, const ApiRequest&,
                                                               const text::Tokenizer&)>;

// Of completions and chats.
std::unique_ptr<AnswerWriter> make_openai_writer(const AnswerHead& head, const ApiRequest& request,
                                                 const text::Tokenizer& tokenizer);

}  // namespace refrain
