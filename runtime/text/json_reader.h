#pragma once
// Reading untrusted JSON files: size and depth caps, and accessors whose errors name file and
// field. Pure functions; a JsonView must not outlive the json it looks at.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace refrain::text {

inline constexpr size_t kMaxJsonDepth = 64;
inline constexpr size_t kMaxFileBytes = size_t{256} << 20;

// A whole file. `name` is how errors call it (the file's name, never its directory).
Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes);

// Parses `text`; refuses nesting deeper than kMaxJsonDepth before parsing.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view name);
// That refusal alone.
Status check_json_depth(std::string_view text, std::string_view name);

class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }  // "tokenizer.json: model.merges[3]"

  // A member that is there and not null.
  std::optional<JsonView> find(std::string_view key) const;
  Result<JsonView> at(std::string_view key) const;
  JsonView item(size_t index) const;  // of an array

  Result<std::string> string() const;
  Result<int64_t> integer(int64_t low, int64_t high) const;
  Status expect_array() const;
  Status expect_object() const;

  Result<std::string> string(std::string_view key) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
  Result<bool> bool_or(std::string_view key, bool fallback) const;

  // An error about this value: "<path> <what>".
  tl::unexpected<Error> error(std::string_view what) const;

 private:
  std::string child_path(std::string_view key) const;
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace refrain::text
