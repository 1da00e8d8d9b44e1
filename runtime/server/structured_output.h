#pragma once
// What a request asks of its answer's form, as the source of a grammar (runtime/grammar/grammar.h).
// Pure functions of JSON; errors name the field. Whether the grammar itself is good is found when
// it is compiled.

#include <string>

#include "runtime/engine/request.h"
#include "runtime/server/json_fields.h"
#include "runtime/text/answer/answer_parser.h"
#include "runtime/text/tokenizer.h"

namespace refrain {

// response_format, structured_outputs or guided_*, of which one may be given; empty: none is. Keys
// of schemas keep the body's order.
Result<std::string> structured_output_of(const OrderedJson& body);

// Calls of a tool, as {"name": …, "parameters": …} with parameters by the tool's schema; `name`:
// of the only one that may be called, empty: any of them.
Result<std::string> forced_tool_call(const OrderedJson& tools, const std::string& name);

// Where the grammar of a chat's answer begins: behind the reasoning, if the answer has one, else
// with the first token. `thinking`: as the prompt leaves it. An error where a tokenizer has no
// token for the end of a reasoning.
Status begin_behind_reasoning(const text::AnswerFormat& format, text::ThinkingStart thinking,
                              const text::Tokenizer& tokenizer, SamplingParams& sampling);

}  // namespace refrain
