#include "runtime/server/url.h"

#include <charconv>

namespace refrain {

std::string url_decode(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr == &text[i + 3]) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::map<std::string, std::string> parse_query(const std::string& query) {
  std::map<std::string, std::string> fields;
  size_t begin = 0;
  while (begin <= query.size()) {
    const size_t end = std::min(query.find('&', begin), query.size());
    const std::string field = query.substr(begin, end - begin);
    const size_t equals = field.find('=');
    if (!field.empty()) {
      fields[url_decode(field.substr(0, equals))] =
          equals == std::string::npos ? "" : url_decode(field.substr(equals + 1));
    }
    begin = end + 1;
  }
  return fields;
}

}  // namespace refrain
