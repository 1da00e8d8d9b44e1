#include "runtime/text/json_reader.h"

#include <fstream>

namespace refrain::text {

using nlohmann::json;

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const std::string name = path.filename().string();
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  if (code) return fail(ErrorCode::kNotFound, "{}: cannot be read: {}", name, code.message());
  if (size > max_bytes)
    return fail(ErrorCode::kInvalidArgument, "{}: {} bytes, more than the {} allowed", name, size,
                max_bytes);
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size)))
    return fail(ErrorCode::kInvalidArgument, "{}: reading it failed", name);
  return text;
}

Status check_json_depth(std::string_view text, std::string_view name) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth)
        return fail(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels", name,
                    kMaxJsonDepth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return {};
}

Result<json> parse_json(std::string_view text, std::string_view name) {
  REFRAIN_RETURN_IF_ERROR(check_json_depth(text, name));
  try {
    return json::parse(text);
  } catch (const json::exception& e) {
    const std::string_view why = e.what();  // what it quotes last may be no UTF-8
    return fail(ErrorCode::kInvalidArgument, "{}: not valid JSON: {}", name,
                why.substr(0, why.find("; last read")));
  }
}

std::string JsonView::child_path(std::string_view key) const {
  const bool top = path_.ends_with(':');
  return path_ + (top ? " " : ".") + std::string(key);
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonView(*it, child_path(key));
}

Result<JsonView> JsonView::at(std::string_view key) const {
  if (auto found = find(key)) return *found;
  return fail(ErrorCode::kInvalidArgument, "{} is missing", child_path(key));
}

JsonView JsonView::item(size_t index) const {
  return JsonView((*value_)[index], path_ + "[" + std::to_string(index) + "]");
}

Result<std::string> JsonView::string() const {
  if (!value_->is_string()) return error("must be a string");
  return value_->get_ref<const std::string&>();
}

Result<int64_t> JsonView::integer(int64_t low, int64_t high) const {
  const auto refuse = [&] {
    return error(fmt::format("must be an integer from {} to {}", low, high));
  };
  if (!value_->is_number_integer()) return refuse();
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{1} << 62) return refuse();
  const auto number = value_->get<int64_t>();
  if (number < low || number > high) return refuse();
  return number;
}

Status JsonView::expect_array() const {
  if (!value_->is_array()) return error("must be an array");
  return {};
}

Status JsonView::expect_object() const {
  if (!value_->is_object()) return error("must be an object");
  return {};
}

Result<std::string> JsonView::string(std::string_view key) const {
  REFRAIN_ASSIGN_OR_RETURN(const JsonView child, at(key));
  return child.string();
}

Result<std::string> JsonView::string_or(std::string_view key, std::string fallback) const {
  if (const auto child = find(key)) return child->string();
  return fallback;
}

Result<bool> JsonView::bool_or(std::string_view key, bool fallback) const {
  const auto child = find(key);
  if (!child) return fallback;
  if (!child->value_->is_boolean()) return child->error("must be true or false");
  return child->value_->get<bool>();
}

tl::unexpected<Error> JsonView::error(std::string_view what) const {
  return fail_field(path_, "{} {}", path_, what);
}

}  // namespace refrain::text
