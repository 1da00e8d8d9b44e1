#pragma once
// A parsed request's way to its session: is its model served, its grammar compiled, its prompts
// become token ids, in turns with others'. Any thread.

#include <memory>
#include <string>
#include <vector>

#include "runtime/server/answer_writer.h"
#include "runtime/server/api_request.h"
#include "runtime/server/ignored_fields.h"
#include "runtime/server/prompt_tokens.h"
#include "runtime/server/text_work.h"

namespace refrain {

// What is known of a request when its body is parsed.
struct ParsedRequest {
  ApiRequest request;
  KeyLease lease;
  Exchange exchange;
  const char* id_begin;                            // of the answer's id
  MakeWriter make_writer = {};                     // of an answer with text
  std::string own_id = {};                         // what follows id_begin; empty: a fresh one
  std::vector<std::vector<TokenId>> prompts = {};  // that are token ids by now
};

class RequestReader {
 public:
  // All outlive it.
  RequestReader(Engine& engine, const TextSide& text, const PromptTokens& tokens, TextWork& work,
                IgnoredFields& ignored, Replies replies);

  // In a turn of TextWork. Ends with a session that has the request, or with an error as answer.
  void start(ParsedRequest parsed);

 private:
  using Parsed = std::shared_ptr<ParsedRequest>;
  // A grammar that is new is compiled first.
  void check_grammar(Parsed parsed);
  void read_prompts(Parsed parsed);
  void start_session(ParsedRequest& parsed);

  Engine& engine_;
  const TextSide& text_;
  const PromptTokens& tokens_;
  TextWork& work_;
  IgnoredFields& ignored_;
  const Replies replies_;
};

}  // namespace refrain
