#pragma once
// Options of vLLM and SGLang that are not here, each with what to know or to do instead. Pure.

#include <string>

namespace refrain {

// A sentence without its end; null: nobody knows this name.
const char* absent_option(const std::string& name);

}  // namespace refrain
