#pragma once
// Rewrites the regex dialect of tokenizer.json (Oniguruma, Ruby syntax, Unicode) into PCRE2's,
// where the two read the same characters differently. What has no known equal is refused. Pure
// function.

#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace refrain::text {

// The error names the construct; the caller adds file and field.
Result<std::string> oniguruma_to_pcre2(std::string_view pattern);

}  // namespace refrain::text
