#pragma once
// Cuts a template's source into tokens, applying white-space control as Jinja does with
// trim_blocks and lstrip_blocks set. Pure function.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::jinja {

enum class TokenKind : uint8_t {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,  // {{ }}
  kBlockBegin,
  kBlockEnd,  // {% %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text holds it: "+", "==", "("
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 0;
};

// Throws TemplateError naming the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace refrain::jinja
