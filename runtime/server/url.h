#pragma once
// Request targets. Pure functions.

#include <map>
#include <string>

namespace refrain {

struct UrlTarget {
  std::string path;  // decoded
  std::map<std::string, std::string> query;
};

// "/path?name=value", or behind "http://host" as proxies send it (RFC 9112, section 3.2.2).
UrlTarget parse_target(const std::string& target);

std::map<std::string, std::string> parse_query(const std::string& query);
std::string percent_decode(const std::string& text);

}  // namespace refrain
