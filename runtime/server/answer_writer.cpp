#include "runtime/server/answer_writer.h"

#include "runtime/server/stream_events.h"

namespace refrain {
namespace {

class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(const AnswerHead& head, bool include_usage, const text::Tokenizer& tokenizer)
      : head_(head),
        include_usage_(include_usage),
        tokenizer_(tokenizer),
        events_(head, tokenizer) {}

  std::string begin(const ChoiceText& choice) override {
    return head_.chat ? events_.role(choice) : std::string();
  }
  std::string part(const ChoiceText& part, int64_t text_offset) override {
    return events_.chunk(part, text_offset);
  }
  std::string end(const Usage& usage) override {
    return (include_usage_ ? events_.usage(usage) : std::string()) + StreamEvents::done();
  }
  std::string error(const std::string& body) override {
    return StreamEvents::error(body) + StreamEvents::done();
  }
  std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) override {
    return dump(whole_answer(head_, choices, usage, tokenizer_));
  }

 private:
  const AnswerHead& head_;
  const bool include_usage_;
  const text::Tokenizer& tokenizer_;
  const StreamEvents events_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_openai_writer(const AnswerHead& head, const ApiRequest& request,
                                                 const text::Tokenizer& tokenizer) {
  return std::make_unique<OpenAiWriter>(head, request.include_usage, tokenizer);
}

}  // namespace refrain
