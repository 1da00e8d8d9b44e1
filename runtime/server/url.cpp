#include "runtime/server/url.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <charconv>

namespace refrain {
namespace {

// Where the path begins.
size_t end_of_authority(const std::string& target) {
  for (const std::string scheme : {"http://", "https://"}) {
    if (boost::beast::iequals(target.substr(0, scheme.size()), scheme))
      return std::min(target.find_first_of("/?", scheme.size()), target.size());
  }
  return 0;
}

// A plus is a space in forms, and nowhere else.
std::string form_decode(std::string text) {
  std::replace(text.begin(), text.end(), '+', ' ');
  return percent_decode(text);
}

}  // namespace

UrlTarget parse_target(const std::string& target) {
  const size_t begin = end_of_authority(target);
  const size_t mark = std::min(target.find('?', begin), target.size());
  UrlTarget parsed;
  parsed.path = percent_decode(target.substr(begin, mark - begin));
  if (parsed.path.empty()) parsed.path += '/';
  if (mark < target.size()) parsed.query = parse_query(target.substr(mark + 1));
  return parsed;
}

std::string percent_decode(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr == &text[i + 3]) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
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
      fields[form_decode(field.substr(0, equals))] =
          equals == std::string::npos ? "" : form_decode(field.substr(equals + 1));
    }
    begin = end + 1;
  }
  return fields;
}

}  // namespace refrain
