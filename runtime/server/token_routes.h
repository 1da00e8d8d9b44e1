#pragma once
// The routes that turn text into tokens and back, and count them. Any thread.

#include "runtime/server/ignored_fields.h"
#include "runtime/server/prompt_tokens.h"
#include "runtime/server/text_work.h"

namespace refrain {

class TokenRoutes {
 public:
  // All outlive it.
  TokenRoutes(const Engine& engine, const PromptTokens& tokens, TextWork& work,
              IgnoredFields& ignored)
      : engine_(engine), tokens_(tokens), work_(work), ignored_(ignored) {}

  void add_to(RouteTable& table);

 private:
  Result<Json> tokenize(HttpRequest request);
  Result<Json> detokenize(HttpRequest request);
  Result<Json> count_tokens(HttpRequest request);  // of a chat in Anthropic's shape

  const Engine& engine_;
  const PromptTokens& tokens_;
  TextWork& work_;
  IgnoredFields& ignored_;
};

}  // namespace refrain
