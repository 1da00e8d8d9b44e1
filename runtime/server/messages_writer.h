#pragma once
// The answers of /v1/messages: a message with a list of content blocks, or its events.

#include "runtime/server/answer_writer.h"

namespace refrain {

std::unique_ptr<AnswerWriter> make_messages_writer(const AnswerHead& head,
                                                   const ApiRequest& request,
                                                   const text::Tokenizer& tokenizer);

}  // namespace refrain
