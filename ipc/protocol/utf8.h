#pragma once
// UTF-8 checks for strings on the wire. Pure functions; any thread.

#include <string>
#include <string_view>

namespace refrain::ipc {

// True for well-formed UTF-8: no overlong forms, surrogates or values past U+10FFFF.
bool is_valid_utf8(std::string_view text);

// `text` with each ill-formed byte replaced by '?', cut at a character's end to at most
// `max_bytes`.
std::string clean_text(std::string_view text, size_t max_bytes);

}  // namespace refrain::ipc
