#include "runtime/config/model/model_config_fields.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

namespace refrain {
namespace {

using nlohmann::json;

const json kEmptyObject = json::object();
constexpr int64_t kMaxConfigBytes = 16 << 20;

// A value as it stands in the file, cut short.
std::string quote(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "…";
  return text;
}

}  // namespace

ModelConfigFields::ModelConfigFields(const json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

const json* ModelConfigFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ModelConfigFields::has(const char* name) const { return find(name) != nullptr; }

void ModelConfigFields::reject(const char* name, const std::string& what) {
  if (!status_) return;
  status_ = fail_field(prefix_ + name, "{}: \"{}{}\" {}", file_, prefix_, name, what);
}

void ModelConfigFields::wrong(const char* name, const json& found, const std::string& needed) {
  reject(name, fmt::format("is {}; {} is needed", quote(found), needed));
}

void ModelConfigFields::missing(const char* name, const std::string& needed) {
  reject(name, fmt::format("is missing; {} is needed", needed));
}

void ModelConfigFields::merge(const ModelConfigFields& nested) {
  if (status_) status_ = nested.status_;
}

int64_t ModelConfigFields::integer(const char* name, int64_t min, int64_t max,
                                   std::optional<int64_t> fallback) {
  const std::string needed = fmt::format("a whole number from {} to {}", min, max);
  const json* found = find(name);
  if (found == nullptr) {
    if (!fallback) missing(name, needed);
    return fallback.value_or(min);
  }
  // An unsigned number beyond int64 would wrap when read as one.
  const bool fits = found->is_number_integer() &&
                    !(found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX);
  if (!fits || found->get<int64_t>() < min || found->get<int64_t>() > max) {
    wrong(name, *found, needed);
    return min;
  }
  return found->get<int64_t>();
}

double ModelConfigFields::number(const char* name, double min, double max,
                                 std::optional<double> fallback) {
  const std::string needed = fmt::format("a number from {} to {}", min, max);
  const json* found = find(name);
  if (found == nullptr) {
    if (!fallback) missing(name, needed);
    return fallback.value_or(min);
  }
  const double value = found->is_number() ? found->get<double>() : std::nan("");
  if (!(value >= min && value <= max)) {
    wrong(name, *found, needed);
    return min;
  }
  return value;
}

bool ModelConfigFields::boolean(const char* name, bool fallback) {
  const json* found = find(name);
  if (found == nullptr) return fallback;
  if (!found->is_boolean()) {
    wrong(name, *found, "true or false");
    return fallback;
  }
  return found->get<bool>();
}

std::string ModelConfigFields::text(const char* name, const std::optional<std::string>& fallback) {
  const json* found = find(name);
  if (found == nullptr) {
    if (!fallback) missing(name, "a string");
    return fallback.value_or("");
  }
  if (!found->is_string()) {
    wrong(name, *found, "a string");
    return {};
  }
  return found->get<std::string>();
}

std::vector<int32_t> ModelConfigFields::integers(const char* name, int64_t min, int64_t max) {
  const json* found = find(name);
  if (found == nullptr) return {};
  const json list = found->is_array() ? *found : json::array({*found});
  std::vector<int32_t> values;
  for (const json& item : list) {
    const bool fits = item.is_number_integer() &&
                      !(item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX);
    if (!fits || item.get<int64_t>() < min || item.get<int64_t>() > max) {
      wrong(name, item, fmt::format("a whole number from {} to {}, or a list of them", min, max));
      return {};
    }
    values.push_back(item.get<int32_t>());
  }
  return values;
}

ModelConfigFields ModelConfigFields::object(const char* name) {
  const json* found = find(name);
  if (found != nullptr && !found->is_object()) wrong(name, *found, "an object");
  const json& nested = found != nullptr && found->is_object() ? *found : kEmptyObject;
  return {nested, file_, prefix_ + name + "."};
}

std::vector<std::string> ModelConfigFields::texts(const char* name) {
  const json* found = find(name);
  if (found == nullptr) return {};
  std::vector<std::string> values;
  if (found->is_array())
    for (const json& item : *found)
      if (item.is_string()) values.push_back(item.get<std::string>());
  if (!found->is_array() || values.size() != found->size())
    wrong(name, *found, "a list of strings");
  return values;
}

Result<std::string> read_small_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error)
    return fail(ErrorCode::kNotFound, "{}: cannot be read: {}", path.string(), error.message());
  if (static_cast<int64_t>(size) > kMaxConfigBytes)
    return fail(ErrorCode::kTooLarge, "{}: has {} bytes, at most {} are allowed", path.string(),
                size, kMaxConfigBytes);
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size)))
    return fail(ErrorCode::kNotFound, "{}: cannot be read: {}", path.string(),
                std::strerror(errno));
  return text;
}

Result<json> parse_json_object(const std::string& text, const std::string& file) {
  try {
    json parsed = json::parse(text);
    if (!parsed.is_object())
      return fail(ErrorCode::kInvalidArgument, "{}: an object in braces is needed", file);
    return parsed;
  } catch (const json::exception& error) {
    std::string why = error.what();
    if (const size_t colon = why.find("] "); colon != std::string::npos) why.erase(0, colon + 2);
    why.erase(std::min(why.find("; last read"), why.size()));  // bytes that may be no UTF-8
    return fail(ErrorCode::kInvalidArgument, "{}: not valid JSON: {}", file, why);
  }
}

}  // namespace refrain
