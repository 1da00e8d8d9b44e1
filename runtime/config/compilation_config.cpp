#include "runtime/config/compilation_config.h"

#include <nlohmann/json.hpp>

namespace refrain {
namespace {

using Json = nlohmann::json;

Result<int32_t> positive_int32(const Json& value, const std::string& key) {
  if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
      value.get<int64_t>() > (int64_t{1} << 20)) {
    return fail_field(key, "compilation config: {} must be a whole number from 1 to {}", key,
                      1 << 20);
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

}  // namespace

Status apply_compilation_config(const std::string& text, ipc::WorkerConfig& config) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return fail_field("compilation_config", "compilation config must be a JSON object, got: {}",
                      text.substr(0, 80));
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "cudagraph_mode") {
      if (!value.is_string()) {
        return fail_field(key, "compilation config: {} must be a string such as FULL_AND_PIECEWISE",
                          key);
      }
      config.cudagraph_mode = value.get<std::string>();
    } else if (key == "cudagraph_capture_sizes") {
      if (!value.is_array()) {
        return fail_field(key, "compilation config: {} must be a list of whole numbers", key);
      }
      config.has_capture_sizes = true;
      config.cudagraph_capture_sizes.clear();
      for (const Json& size : value) {
        REFRAIN_ASSIGN_OR_RETURN(const int32_t parsed, positive_int32(size, key));
        config.cudagraph_capture_sizes.push_back(parsed);
      }
    } else if (key == "max_cudagraph_capture_size") {
      REFRAIN_ASSIGN_OR_RETURN(config.max_cudagraph_capture_size, positive_int32(value, key));
    } else if (key == "splitting_ops") {
      if (!value.is_array()) {
        return fail_field(key, "compilation config: {} must be a list of op names", key);
      }
      config.has_splitting_ops = true;
      config.splitting_ops.clear();
      for (const Json& op : value) {
        if (!op.is_string()) {
          return fail_field(key, "compilation config: {} must hold strings", key);
        }
        config.splitting_ops.push_back(op.get<std::string>());
      }
    } else {
      return fail_field(key,
                        "compilation config: unknown key '{}'; known are cudagraph_mode, "
                        "cudagraph_capture_sizes, max_cudagraph_capture_size, splitting_ops",
                        key);
    }
  }
  return {};
}

}  // namespace refrain
