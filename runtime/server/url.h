#pragma once
// Percent-decoding of request targets. Pure.

#include <map>
#include <string>

namespace refrain {

std::string url_decode(const std::string& text);
std::map<std::string, std::string> parse_query(const std::string& query);

}  // namespace refrain
