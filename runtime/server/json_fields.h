#pragma once
// Reading a client's JSON object field by field: wrong types and numbers out of range become one
// sentence that names the field. The first error is kept; later reads do nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace refrain {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // for chat templates, which print keys in their order

// Bytes that parsing texts may cost above 16 times their own. Texts of one request share
// one.
struct JsonAllowance {
  size_t bytes = size_t{8} << 20;
};

// Parses text no deeper than 64 levels; errors say what is wrong and where.
Result<Json> parse_json(const std::string& text);
// The token ids of the member `name` of an object's top level, a list or a list of lists, read
// straight into numbers: the tree has the lists without them. What is no token id stays in the
// tree.
struct TokenLists {
  std::vector<TokenId> flat;
  std::vector<std::vector<TokenId>> nested;  // one for each list in the list, in order
};
Result<Json> parse_json(const std::string& text, const char* name, TokenLists& lists);
// As the first one, keys kept in order. Finding a key takes time linear in an object's members, so
// objects of more than 1024 are refused.
Result<OrderedJson> parse_ordered_json(const std::string& text);
Result<OrderedJson> parse_ordered_json(const std::string& text, JsonAllowance& allowance);

// The string at `name`, or empty when there is none or it is no string.
std::string text_of(const Json& object, const char* name);

class JsonFields {
 public:
  explicit JsonFields(const Json& object) : object_(object) {}

  // Absent and null mean "not given" for every reader.
  bool has(const char* name) const;
  const Json* get(const char* name) const;  // null when not given
  std::optional<bool> boolean(const char* name);
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  std::optional<double> number(const char* name, double least, double most);
  std::optional<std::string> string(const char* name);
  void fail_on(const std::string& name, const std::string& message);
  const Status& status() const { return status_; }
  bool ok() const { return status_.has_value(); }

 private:
  const Json& object_;
  Status status_;
};

}  // namespace refrain
