#include "runtime/config/model/model_config.h"

#include <algorithm>

#include "runtime/config/model/model_config_fields.h"

namespace refrain {
namespace {

// Far beyond any model there is, and small enough that products of three cannot overflow.
constexpr int64_t kMaxWidth = 1 << 20, kMaxVocab = 1 << 24, kMaxLayers = 4096, kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024, kMaxPositions = 1 << 28;

// Either "rope_parameters" (theta and scaling in one) or "rope_theta" with "rope_scaling".
void read_rope(ModelConfigFields& fields, ModelConfig& config) {
  const bool merged = fields.has("rope_parameters");
  ModelConfigFields rope = fields.object(merged ? "rope_parameters" : "rope_scaling");
  const double theta = fields.number("rope_theta", 1.0, 1e12, 10000.0);
  config.rope_theta = merged ? rope.number("rope_theta", 1.0, 1e12, theta) : theta;
  const double partial = fields.number("partial_rotary_factor", 0.01, 1.0, 1.0);
  config.partial_rotary_factor =
      merged ? rope.number("partial_rotary_factor", 0.01, 1.0, partial) : partial;

  RopeScaling& scaling = config.rope_scaling;
  const char* name = rope.has("rope_type") ? "rope_type" : "type";  // "type": before 2024
  scaling.type = rope.text(name, "default");
  if (scaling.type == "linear" || scaling.type == "llama3")
    scaling.factor = rope.number("factor", 1.0, 1e6);
  if (scaling.type == "llama3") {
    scaling.low_freq_factor = rope.number("low_freq_factor", 1e-3, 1e6);
    scaling.high_freq_factor = rope.number("high_freq_factor", 1e-3, 1e6);
    scaling.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", 1, kMaxPositions);
    if (rope.status() && scaling.high_freq_factor <= scaling.low_freq_factor)
      rope.reject("high_freq_factor",
                  fmt::format("is {}; it must be above low_freq_factor {}",
                              scaling.high_freq_factor, scaling.low_freq_factor));
  } else if (scaling.type != "default" && scaling.type != "linear") {
    rope.reject(name, fmt::format("is \"{}\"; there are default, linear and llama3", scaling.type));
  }
  fields.merge(rope);
}

void read_sizes(ModelConfigFields& fields, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = fields.integer("hidden_size", 2, kMaxWidth);
  config.intermediate_size = fields.integer("intermediate_size", 2, kMaxWidth);
  config.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = fields.integer("num_key_value_heads", 1, kMaxHeads, config.num_heads);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-12, 1e-1);
  if (!fields.status()) return;
  if (config.num_heads % config.num_kv_heads != 0)
    fields.reject("num_key_value_heads", fmt::format("is {}; it must divide num_attention_heads {}",
                                                     config.num_kv_heads, config.num_heads));
  for (const char* name : {"hidden_size", "intermediate_size"}) {
    const int64_t size = name[0] == 'h' ? config.hidden_size : config.intermediate_size;
    if (size % 2 != 0) fields.reject(name, fmt::format("is {}; an even number is needed", size));
  }
  if (fields.has("head_dim")) {
    config.head_dim = fields.integer("head_dim", 2, kMaxHeadDim);
  } else if (config.hidden_size % config.num_heads != 0) {
    fields.reject("head_dim", fmt::format("is missing and hidden_size {} does not divide by "
                                          "num_attention_heads {}",
                                          config.hidden_size, config.num_heads));
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (fields.status() && (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim))
    fields.reject("head_dim", fmt::format("is {}; an even number up to {} is needed",
                                          config.head_dim, kMaxHeadDim));
}

// Features that a config can ask for and that no model here has: better refused than wrong.
void refuse_unsupported(ModelConfigFields& fields) {
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu")
    fields.reject("hidden_act", fmt::format("is \"{}\"; only silu can be run", activation));
  if (fields.has("quantization_config"))
    fields.reject("quantization_config",
                  "is there; only bfloat16, float16 and float32 checkpoints can be read");
}

// Which layers attend within sliding_window. Qwen's models name them with use_sliding_window, by
// layer_types or as all from max_window_layers on; others that name some are refused.
void read_windows(ModelConfigFields& fields, ModelConfig& config) {
  const std::vector<std::string> types = fields.texts("layer_types");
  for (const std::string& type : types)
    if (type != "full_attention" && type != "sliding_attention")
      fields.reject("layer_types",
                    fmt::format("has \"{}\"; full_attention or sliding_attention is needed", type));
  const bool names_some = std::ranges::find(types, "sliding_attention") != types.end();
  const bool uses = fields.boolean("use_sliding_window", false);
  if (!uses) {
    if (names_some)
      fields.reject("layer_types", "has \"sliding_attention\" without use_sliding_window");
    return;
  }
  if (config.architecture == "LlamaForCausalLM") {
    fields.reject("use_sliding_window", "is true; a Llama has no sliding windows");
    return;
  }
  config.sliding_window = fields.integer("sliding_window", 1, kMaxPositions);
  const auto layers = static_cast<size_t>(config.num_layers);
  if (!types.empty() && types.size() != layers) {
    fields.reject("layer_types", fmt::format("has {} entries for {} layers", types.size(), layers));
    return;
  }
  const int64_t first = types.empty() ? fields.integer("max_window_layers", 0, kMaxPositions) : 0;
  for (size_t layer = 0; layer < layers; ++layer)
    config.slides.push_back(types.empty() ? static_cast<int64_t>(layer) >= first
                                          : types[layer] == "sliding_attention");
}

void read_traits(ModelConfigFields& fields, ModelConfig& config) {
  const bool qwen2 = config.architecture == "Qwen2ForCausalLM";
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  const bool bias = fields.boolean("attention_bias", false);
  config.attention_bias = qwen2 || bias;  // Qwen2 has no such field
  config.attention_out_bias = !qwen2 && bias;
  config.mlp_bias = fields.boolean("mlp_bias", false);
  config.qk_norm = config.architecture == "Qwen3ForCausalLM";
  config.torch_dtype = fields.text(fields.has("dtype") ? "dtype" : "torch_dtype", "bfloat16");
  if (fields.status() && config.torch_dtype != "bfloat16" && config.torch_dtype != "float16" &&
      config.torch_dtype != "float32")
    fields.reject(
        fields.has("dtype") ? "dtype" : "torch_dtype",
        fmt::format("is \"{}\"; bfloat16, float16 or float32 is needed", config.torch_dtype));
  config.eos_token_ids = fields.integers("eos_token_id", 0, config.vocab_size - 1);
  const std::vector<int32_t> bos = fields.integers("bos_token_id", 0, config.vocab_size - 1);
  if (!bos.empty()) config.bos_token_id = bos.front();
  config.matryoshka_dimensions = fields.integers("matryoshka_dimensions", 1, config.hidden_size);
  config.is_matryoshka =
      fields.boolean("is_matryoshka", false) || !config.matryoshka_dimensions.empty();
}

// What config.json of a draft head says beyond that of a model.
void read_head(ModelConfigFields& fields, ModelConfig& config) {
  config.draft_vocab_size = fields.integer("draft_vocab_size", 0, config.vocab_size, 0);
  config.hidden_layers =
      fields.integers("eagle_aux_hidden_state_layer_ids", 0, static_cast<int64_t>(kMaxLayers));
  if (config.hidden_layers.empty()) {
    ModelConfigFields eagle = fields.object("eagle_config");
    config.hidden_layers = eagle.integers("eagle_aux_hidden_state_layer_ids", 0, kMaxLayers);
    fields.merge(eagle);
  }
  config.fc_bias = fields.boolean("eagle_fc_bias", false) || fields.boolean("bias", false);
  config.norm_before_residual = fields.boolean("norm_before_residual", false);
}

void read_architecture(ModelConfigFields& fields, ModelConfig& config) {
  const std::vector<std::string> names = fields.texts("architectures");
  static constexpr const char* kKnown[] = {"LlamaForCausalLM",       "Qwen2ForCausalLM",
                                           "Qwen3ForCausalLM",       "EagleLlamaForCausalLM",
                                           "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"};
  constexpr const char* kList = "LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM";
  if (names.size() != 1) {
    fields.reject("architectures", fmt::format("must name one architecture: {}", kList));
    return;
  }
  config.architecture = names.front();
  static constexpr const char* kWithoutHead[] = {"LlamaModel", "Qwen2Model", "Qwen3Model"};
  if (std::ranges::find(kWithoutHead, config.architecture) != std::end(kWithoutHead)) {
    config.has_head = false;
    config.architecture.replace(config.architecture.size() - 5, 5, "ForCausalLM");
  }
  static constexpr const char* kEncoders[] = {"Bert",    "Roberta", "MPNet",
                                              "Electra", "Deberta", "T5"};
  if (std::ranges::any_of(kEncoders, [&](const char* family) {
        return config.architecture.find(family) != std::string::npos;
      })) {
    fields.reject("architectures",
                  fmt::format("is \"{}\"; encoders, whose tokens see those after them, cannot be "
                              "run, only decoders: {}",
                              config.architecture.substr(0, 80), kList));
    return;
  }
  if (std::find(std::begin(kKnown), std::end(kKnown), config.architecture) == std::end(kKnown))
    fields.reject("architectures",
                  fmt::format("is \"{}\"; {} is needed", config.architecture.substr(0, 80), kList));
  config.model_type = fields.text("model_type", "");
}

// Further end-of-sequence ids; sampling defaults are read by generation_config.cpp.
Status read_generation_config(const std::string& text, const std::string& file,
                              ModelConfig& config) {
  REFRAIN_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json_object(text, file));
  ModelConfigFields fields(json, file);
  for (const int32_t id : fields.integers("eos_token_id", 0, config.vocab_size - 1)) {
    auto& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return fields.status();
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& text, const std::string& file_name) {
  REFRAIN_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json_object(text, file_name));
  ModelConfigFields fields(json, file_name);
  ModelConfig config;
  read_architecture(fields, config);
  read_sizes(fields, config);
  if (fields.status()) read_rope(fields, config);
  if (fields.status()) refuse_unsupported(fields);
  if (fields.status()) read_windows(fields, config);
  if (fields.status()) read_traits(fields, config);
  if (fields.status()) read_head(fields, config);
  if (!fields.status()) return forward_error(fields.status().error());
  const double rotary = static_cast<double>(config.head_dim) * config.partial_rotary_factor;
  if (rotary < 2.0 || rotary != static_cast<double>(static_cast<int64_t>(rotary / 2) * 2))
    return fail_field("partial_rotary_factor",
                      "{}: \"partial_rotary_factor\" {} gives {} rotary dimensions of head_dim {}; "
                      "an even number is needed",
                      file_name, config.partial_rotary_factor, rotary, config.head_dim);
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    return fail_field("model",
                      "model {} is not a directory; give one with config.json and "
                      "safetensors files",
                      directory.string());
  const std::filesystem::path path = directory / "config.json";
  REFRAIN_ASSIGN_OR_RETURN(const std::string text, read_small_file(path));
  REFRAIN_ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(text, path.string()));
  const std::filesystem::path generation = directory / "generation_config.json";
  if (std::filesystem::exists(generation, error)) {
    REFRAIN_ASSIGN_OR_RETURN(const std::string more, read_small_file(generation));
    REFRAIN_RETURN_IF_ERROR(read_generation_config(more, generation.string(), config));
  }
  return config;
}

}  // namespace refrain
