#pragma once
// Checked reading of a JSON object's fields: every error names the file and the field and says what
// would be right. The first error is kept and ends the reading's worth. Used while parsing only.

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace refrain {

class ModelConfigFields {
 public:
  ModelConfigFields(const nlohmann::json& object, std::string file, std::string prefix = {});

  bool has(const char* name) const;  // there, and not null
  // Without a fallback the field must be there.
  int64_t integer(const char* name, int64_t min, int64_t max, std::optional<int64_t> fallback = {});
  double number(const char* name, double min, double max, std::optional<double> fallback = {});
  bool boolean(const char* name, bool fallback);
  std::string text(const char* name, const std::optional<std::string>& fallback = {});
  // One integer or a list of them; absent: empty.
  std::vector<int32_t> integers(const char* name, int64_t min, int64_t max);
  // A field that is an object, as fields; absent: an empty object.
  ModelConfigFields object(const char* name);
  // A list of strings; absent: empty.
  std::vector<std::string> texts(const char* name);

  void reject(const char* name, const std::string& what);
  const Status& status() const { return status_; }
  // Takes over the error of fields nested in these.
  void merge(const ModelConfigFields& nested);

 private:
  const nlohmann::json* find(const char* name) const;
  void wrong(const char* name, const nlohmann::json& found, const std::string& needed);
  void missing(const char* name, const std::string& needed);

  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
  Status status_;
};

// A file's text, of at most 16 MiB.
Result<std::string> read_small_file(const std::filesystem::path& path);
// `text`, which `file` holds, as one JSON object.
Result<nlohmann::json> parse_json_object(const std::string& text, const std::string& file);

}  // namespace refrain
