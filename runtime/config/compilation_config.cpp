#include "runtime/config/compilation_config.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "runtime/base/json.h"

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

constexpr const char* kCompiler = "nothing is compiled by torch here";
constexpr const char* kPasses = "passes follow from the device; what they fuse is always on";
constexpr const char* kBuffers = "graphs read the step's own buffers, which do not move";
constexpr const char* kEncoder = "there are no multimodal encoders yet";
constexpr const char* kMoe = "there are no mixtures of experts yet";

// vLLM 0.21's other keys, and why they change nothing.
const std::map<std::string, const char*>& ignored_keys() {
  static const std::map<std::string, const char*> keys = {
      {"mode", kCompiler},
      {"level", kCompiler},
      {"debug_dump_path", kCompiler},
      {"cache_dir", kCompiler},
      {"local_cache_dir", kCompiler},
      {"compile_cache_save_format", kCompiler},
      {"backend", kCompiler},
      {"custom_ops", kCompiler},
      {"compile_sizes", kCompiler},
      {"compile_ranges_split_points", kCompiler},
      {"compile_ranges_endpoints", kCompiler},
      {"use_inductor", kCompiler},
      {"inductor_compile_config", kCompiler},
      {"inductor_passes", kCompiler},
      {"dynamic_shapes_config", kCompiler},
      {"use_inductor_graph_partition", kCompiler},
      {"ir_enable_torch_wrap", kCompiler},
      {"traced_files", kCompiler},
      {"enabled_custom_ops", kCompiler},
      {"disabled_custom_ops", kCompiler},
      {"compilation_time", kCompiler},
      {"encoder_compilation_time", kCompiler},
      {"pass_config", kPasses},
      {"cudagraph_copy_inputs", kBuffers},
      {"compile_mm_encoder", kEncoder},
      {"cudagraph_mm_encoder", kEncoder},
      {"encoder_cudagraph_token_budgets", kEncoder},
      {"encoder_cudagraph_max_images_per_batch", kEncoder},
      {"encoder_cudagraph_max_vision_items_per_batch", kEncoder},
      {"encoder_cudagraph_max_frames_per_batch", kEncoder},
      {"fast_moe_cold_start", kMoe},
      {"static_all_moe_layers", kMoe},
      {"static_forward_context", kCompiler},
  };
  return keys;
}

// vLLM's own names of ops stand for ours.
std::string op_name(const std::string& name) {
  return name.starts_with("vllm::") && name.find("attention") != std::string::npos ? "attention"
                                                                                   : name;
}

}  // namespace

Result<std::vector<std::string>> apply_compilation_config(const std::string& text,
                                                          ipc::WorkerConfig& config) {
  std::vector<std::string> ignored;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_number_integer() && json >= 0 && json <= 3) {  // -O3
    ignored.push_back(fmt::format("level {} is ignored: {}", json.get<int>(), kCompiler));
    return ignored;
  }
  if (!json.is_object()) {
    return fail_field("compilation_config", "compilation config must be a JSON object, got: {}",
                      text.substr(0, 80));
  }
  for (const auto& [key, value] : json.items()) {
    if (value.is_null()) continue;  // vLLM's "as the default says"
    const auto other = ignored_keys().find(key);
    if (other != ignored_keys().end()) {
      ignored.push_back(fmt::format("{} is ignored: {}", key, other->second));
    } else if (key == "use_cudagraph" || key == "full_cuda_graph") {
      if (!value.is_boolean()) {
        return fail_field(key, "compilation config: {} must be true or false", key);
      }
      const bool full = key == "full_cuda_graph";
      if (value.get<bool>() == full) config.cudagraph_mode = full ? "FULL" : "NONE";
    } else if (key == "cudagraph_specialize_lora") {
      if (!value.is_boolean()) {
        return fail_field(key, "compilation config: {} must be true or false", key);
      }
      config.cudagraph_specialize_lora = value.get<bool>();
    } else if (key == "cudagraph_mode") {
      if (!value.is_string()) {
        return fail_field(key, "compilation config: {} must be a string such as FULL_AND_PIECEWISE",
                          key);
      }
      config.cudagraph_mode = value.get<std::string>();
      std::ranges::transform(config.cudagraph_mode, config.cudagraph_mode.begin(),
                             [](unsigned char c) { return std::toupper(c); });
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
    } else if (key == "cudagraph_num_of_warmups") {
      if (!value.is_number_integer() || value < 0 || value > 100)
        return fail_field(key, "compilation config: {} must be a whole number from 0 to 100", key);
      config.cudagraph_num_of_warmups = value.get<int32_t>();
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
        const std::string name = op_name(op.get<std::string>());
        if (std::ranges::count(config.splitting_ops, name) == 0)
          config.splitting_ops.push_back(name);
      }
    } else {
      return fail_field(key,
                        "compilation config: unknown key '{}'; those that take effect are "
                        "cudagraph_mode, cudagraph_capture_sizes, max_cudagraph_capture_size, "
                        "cudagraph_num_of_warmups, splitting_ops, cudagraph_specialize_lora",
                        key);
    }
  }
  // vLLM's pages show both; a list says more than its limit.
  const auto& sizes = config.cudagraph_capture_sizes;
  if (config.has_capture_sizes && !sizes.empty() &&
      config.max_cudagraph_capture_size > *std::ranges::max_element(sizes)) {
    ignored.push_back(fmt::format(
        "max_cudagraph_capture_size {} is ignored: the largest of cudagraph_capture_sizes is {}",
        config.max_cudagraph_capture_size, *std::ranges::max_element(sizes)));
    config.max_cudagraph_capture_size = 0;
  }
  return ignored;
}

std::vector<std::string> join_compilation_config(std::vector<std::string> words) {
  std::vector<std::string> rest;
  std::string whole;  // the last object that the option itself was given
  Json keys = Json::object();
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    std::string_view key = word;  // behind the option's name: "", "=VALUE", ".KEY" or ".KEY=VALUE"
    for (const std::string_view name : {"--compilation-config", "-cc", "-O"}) {
      if (!word.starts_with(name)) continue;
      key.remove_prefix(name.size());
      break;
    }
    if (key.size() == word.size() || !(key.empty() || key[0] == '=' || key[0] == '.')) {
      rest.push_back(word);
      continue;
    }
    const size_t equal = std::min(key.find('='), key.size());
    const bool apart = equal == key.size() && i + 1 < words.size();
    const std::string value =
        apart ? words[++i] : std::string(key.substr(std::min(equal + 1, key.size())));
    key = key.substr(0, equal);
    if (key.empty()) {
      whole = value;
      continue;
    }
    Json* at = &keys;
    while (!key.empty()) {  // ".pass_config.fuse_norm_quant"
      const size_t end = std::min(key.find('.', 1), key.size());
      if (!at->is_object()) *at = Json::object();
      at = &(*at)[std::string(key.substr(1, end - 1))];
      key.remove_prefix(end);
    }
    const Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    *at = parsed.is_discarded() ? Json(value) : parsed;
  }
  if (keys.empty() && whole.empty()) return words;
  Json all = Json::parse(whole, nullptr, /*allow_exceptions=*/false);
  if (!keys.empty() && (whole.empty() || all.is_object())) {  // else what is wrong is said later
    if (whole.empty()) all = Json::object();
    all.update(keys, /*merge_objects=*/true);
    whole = all.dump();
  }
  rest.insert(rest.end(), {"--compilation-config", whole});
  return rest;
}

}  // namespace refrain
