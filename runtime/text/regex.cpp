#include "runtime/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "runtime/base/check.h"
#include "runtime/text/regex_syntax.h"

namespace refrain::text {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // PCRE2's own unit of backtracking work
constexpr uint32_t kHeapLimitKib = 16 * 1024;
constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMax = 1024 * 1024;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct RegexScratch::Handles {
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data;
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> stack;
};

struct Regex::Code {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code;
  bool jit = false;
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()) {
  handles_->data.reset(pcre2_match_data_create(1, nullptr));  // groups are never captured
  handles_->context.reset(pcre2_match_context_create(nullptr));
  REFRAIN_CHECK(handles_->data && handles_->context, "no memory for regex matching");
  handles_->stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
  if (handles_->stack)
    pcre2_jit_stack_assign(handles_->context.get(), nullptr, handles_->stack.get());
  pcre2_set_match_limit(handles_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(handles_->context.get(), kHeapLimitKib);
}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

Regex::Regex() = default;
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Result<Regex> Regex::compile_pcre2(const std::string& pattern) {
  const std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  REFRAIN_CHECK(context != nullptr, "no memory for a regex");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  Regex regex;
  regex.pattern_ = pattern;
  regex.code_ = std::make_unique<Code>();
  regex.code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK, &code,
      &offset, context.get()));
  if (!regex.code_->code)
    return fail(ErrorCode::kInvalidArgument, "the regex does not compile: {} (in '{}', at byte {})",
                message_of(code), pattern, offset);
  // Without JIT (a platform that forbids it) matching is slower, never different.
  regex.code_->jit = pcre2_jit_compile(regex.code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return regex;
}

Result<Regex> Regex::compile(std::string_view pattern) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string translated, oniguruma_to_pcre2(pattern));
  return compile_pcre2(translated);
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (byte < 0x20) {
      quoted += fmt::format("\\x{:02X}", byte);
    } else {
      if (!plain) quoted.push_back('\\');
      quoted.push_back(c);
    }
  }
  return compile_pcre2(quoted);
}

Result<bool> Regex::find(std::string_view text, size_t from, RegexScratch& scratch,
                         Match& match) const {
  if (scratch.stop != nullptr && *scratch.stop)
    return fail(ErrorCode::kUnavailable, "the server is shutting down");
  auto& handles = *scratch.handles_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int rc = code_->jit
                     ? pcre2_jit_match(code_->code.get(), subject, text.size(), from, 0,
                                       handles.data.get(), handles.context.get())
                     : pcre2_match(code_->code.get(), subject, text.size(), from,
                                   PCRE2_NO_UTF_CHECK, handles.data.get(), handles.context.get());
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    return fail(ErrorCode::kInvalidArgument,
                "the text is too hard to split with the tokenizer's regex '{}': {}", pattern_,
                message_of(rc));
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(handles.data.get());
  match = {offsets[0], offsets[1]};
  return true;
}

}  // namespace refrain::text
