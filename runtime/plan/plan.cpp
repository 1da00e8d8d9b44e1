#include "runtime/plan/plan.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "runtime/base/json.h"
#include "worker/dispatch/dispatcher.h"

namespace refrain {
namespace {

using worker::AttentionCGSupport, worker::AttentionGroupSupport, worker::BatchDescriptor,
    worker::BatchShape, worker::CudagraphConfig, worker::CudagraphDispatcher,
    worker::CudagraphOptions, worker::Dispatch, worker::RuntimeMode;

using Json = nlohmann::ordered_json;

struct PlanBatch {
  std::vector<int32_t> query_lens;
  std::vector<int32_t> context_lens;
  BatchShape shape;
};

struct PlanInput {
  CudagraphOptions options;
  std::vector<AttentionGroupSupport> groups;
  bool piecewise_available = true;
  std::vector<PlanBatch> batches;
};

// Readers of one field; `path` is the field as errors name it.
Result<bool> read_bool(const Json& value, const std::string& path) {
  if (!value.is_boolean()) return fail_field(path, "{} must be true or false", path);
  return value.get<bool>();
}

Result<int32_t> read_int(const Json& value, const std::string& path) {
  const auto bad = [&] { return fail_field(path, "{} must be a whole number below 2^31", path); };
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > static_cast<uint64_t>(kMax)) return bad();
  } else if (!value.is_number_integer() || value.get<int64_t>() < kMin ||
             value.get<int64_t>() > kMax) {
    return bad();
  }
  return value.get<int32_t>();
}

Result<std::vector<int32_t>> read_ints(const Json& value, const std::string& path) {
  if (!value.is_array()) return fail_field(path, "{} must be a list of whole numbers", path);
  std::vector<int32_t> numbers;
  for (const Json& item : value) {
    REFRAIN_ASSIGN_OR_RETURN(const int32_t number, read_int(item, path));
    numbers.push_back(number);
  }
  return numbers;
}

Result<std::vector<std::string>> read_strings(const Json& value, const std::string& path) {
  if (!value.is_array()) return fail_field(path, "{} must be a list of names", path);
  std::vector<std::string> names;
  for (const Json& item : value) {
    if (!item.is_string()) return fail_field(path, "{} must be a list of names", path);
    names.push_back(item.get<std::string>());
  }
  return names;
}

Result<ipc::CaptureHiddenMode> read_hidden(const Json& value, const std::string& path) {
  using enum ipc::CaptureHiddenMode;
  for (const auto mode : {kNull, kLast, kFull})
    if (value == ipc::to_string(mode)) return mode;
  return fail_field(path, "{} must be \"NULL\", \"LAST\" or \"FULL\"", path);
}

Status check_names(const Json& object, const std::string& prefix,
                   std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string names;
    for (std::string_view each : known) names += (names.empty() ? "" : ", ") + std::string(each);
    return fail_field(prefix + name, "{} is unknown; the fields here are {}", prefix + name, names);
  }
  return {};
}

// Calls `read` if the field is there; `nullable` fields may be null, which means absent.
template <class Read>
Status optional_field(const Json& object, const char* name, bool nullable, Read read) {
  const auto at = object.find(name);
  if (at == object.end() || (nullable && at->is_null())) return {};
  return read(*at);
}

Status read_options(const Json& root, CudagraphOptions& options) {
  const auto read_into = [&](const char* name, auto& target, auto read, bool nullable) -> Status {
    return optional_field(root, name, nullable, [&](const Json& value) -> Status {
      REFRAIN_ASSIGN_OR_RETURN(target, read(value, name));
      return {};
    });
  };
  REFRAIN_RETURN_IF_ERROR(
      optional_field(root, "cudagraph_mode", false, [&](const Json& value) -> Status {
        if (!value.is_string()) {
          return fail_field("cudagraph_mode", "cudagraph_mode must be a name in quotes");
        }
        options.mode = value.get<std::string>();
        return {};
      }));
  REFRAIN_RETURN_IF_ERROR(
      read_into("cudagraph_capture_sizes", options.capture_sizes, read_ints, true));
  REFRAIN_RETURN_IF_ERROR(
      read_into("max_cudagraph_capture_size", options.max_capture_size, read_int, true));
  REFRAIN_RETURN_IF_ERROR(read_into("max_num_seqs", options.max_num_seqs, read_int, false));
  REFRAIN_RETURN_IF_ERROR(
      read_into("max_num_batched_tokens", options.max_num_batched_tokens, read_int, false));
  REFRAIN_RETURN_IF_ERROR(
      read_into("num_speculative_tokens", options.num_speculative_tokens, read_int, false));
  REFRAIN_RETURN_IF_ERROR(
      optional_field(root, "uniform_query_lens", false, [&](const Json& value) -> Status {
        REFRAIN_ASSIGN_OR_RETURN(options.uniform_query_lens,
                                 read_ints(value, "uniform_query_lens"));
        return {};
      }));
  REFRAIN_RETURN_IF_ERROR(read_into("enforce_eager", options.enforce_eager, read_bool, false));
  REFRAIN_RETURN_IF_ERROR(read_into("disable_padding", options.disable_padding, read_bool, false));
  REFRAIN_RETURN_IF_ERROR(read_into("lora", options.lora, read_bool, false));
  REFRAIN_RETURN_IF_ERROR(
      read_into("capture_hidden_mode", options.capture_hidden_mode, read_hidden, false));
  return optional_field(root, "max_padding_ratio", true, [&](const Json& value) -> Status {
    if (!value.is_number()) {
      return fail_field("max_padding_ratio", "max_padding_ratio must be a number or null");
    }
    options.max_padding_ratio = value.get<double>();
    return {};
  });
}

Result<std::vector<AttentionGroupSupport>> read_groups(const Json& value) {
  REFRAIN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           read_strings(value, "attention_support"));
  std::vector<AttentionGroupSupport> groups;
  for (const std::string& name : names) {
    REFRAIN_ASSIGN_OR_RETURN(const AttentionCGSupport support,
                             worker::parse_attention_support(name));
    groups.push_back({fmt::format("attention_support[{}]", groups.size()), support});
  }
  return groups;
}

Result<uint8_t> read_allowed_modes(const Json& value, const std::string& path) {
  REFRAIN_ASSIGN_OR_RETURN(const std::vector<std::string> names, read_strings(value, path));
  uint8_t allowed = 0;
  for (const std::string& name : names) {
    int bit = -1;
    for (int mode = 0; mode < 3; ++mode) {
      if (name == ipc::to_string(static_cast<RuntimeMode>(mode))) bit = mode;
    }
    if (bit < 0) {
      return fail_field(path, "{} holds \"{}\"; a mode is NONE, PIECEWISE or FULL", path, name);
    }
    allowed = static_cast<uint8_t>(allowed | (1 << bit));
  }
  return allowed;
}

Result<PlanBatch> read_batch(const Json& value, const std::string& path) {
  if (!value.is_object()) return fail_field(path, "{} must be an object with query_lens", path);
  REFRAIN_RETURN_IF_ERROR(check_names(value, path + ".",
                                      {"query_lens", "context_lens", "cascade", "allowed_modes",
                                       "has_lora", "capture_hidden_mode"}));
  const std::string lens_path = path + ".query_lens";
  if (!value.contains("query_lens")) {
    return fail_field(lens_path, "{} is missing; give the tokens of each request", lens_path);
  }
  PlanBatch batch;
  REFRAIN_ASSIGN_OR_RETURN(batch.query_lens, read_ints(value["query_lens"], lens_path));
  int64_t tokens = 0;
  for (int32_t length : batch.query_lens) {
    if (length < 1)
      return fail_field(lens_path, "{} holds {}; each must be ≥ 1", lens_path, length);
    tokens += length;
  }
  if (tokens > std::numeric_limits<int32_t>::max()) {
    return fail_field(lens_path, "{} adds up to {} tokens; the sum must be below 2^31", lens_path,
                      tokens);
  }
  REFRAIN_RETURN_IF_ERROR(
      optional_field(value, "context_lens", false, [&](const Json& lens) -> Status {
        const std::string field = path + ".context_lens";
        REFRAIN_ASSIGN_OR_RETURN(batch.context_lens, read_ints(lens, field));
        if (batch.context_lens.size() != batch.query_lens.size()) {
          return fail_field(field, "{} has {} entries, query_lens has {}; they must be as many",
                            field, batch.context_lens.size(), batch.query_lens.size());
        }
        for (int32_t length : batch.context_lens) {
          if (length < 0) return fail_field(field, "{} holds {}; each must be ≥ 0", field, length);
        }
        return {};
      }));
  const auto flag = [&](const char* name, bool& target) {
    return optional_field(value, name, false, [&](const Json& item) -> Status {
      REFRAIN_ASSIGN_OR_RETURN(target, read_bool(item, path + "." + name));
      return {};
    });
  };
  REFRAIN_RETURN_IF_ERROR(flag("cascade", batch.shape.cascade));
  REFRAIN_RETURN_IF_ERROR(flag("has_lora", batch.shape.has_lora));
  REFRAIN_RETURN_IF_ERROR(
      optional_field(value, "capture_hidden_mode", false, [&](const Json& mode) -> Status {
        REFRAIN_ASSIGN_OR_RETURN(batch.shape.hidden,
                                 read_hidden(mode, path + ".capture_hidden_mode"));
        return {};
      }));
  REFRAIN_RETURN_IF_ERROR(
      optional_field(value, "allowed_modes", true, [&](const Json& modes) -> Status {
        REFRAIN_ASSIGN_OR_RETURN(batch.shape.allowed_modes,
                                 read_allowed_modes(modes, path + ".allowed_modes"));
        return {};
      }));
  batch.shape.num_tokens = static_cast<int32_t>(tokens);
  batch.shape.num_reqs = static_cast<int32_t>(batch.query_lens.size());
  return batch;
}

Result<std::vector<PlanBatch>> read_batches(const Json& list) {
  if (!list.is_array()) return fail_field("batches", "batches must be a list of batches");
  std::vector<PlanBatch> batches;
  for (const Json& value : list) {
    REFRAIN_ASSIGN_OR_RETURN(PlanBatch batch,
                             read_batch(value, fmt::format("batches[{}]", batches.size())));
    batches.push_back(std::move(batch));
  }
  return batches;
}

Result<PlanInput> read_plan(const std::string& text) {
  const Json root = Json::parse(text, nullptr, false);
  if (root.is_discarded()) return fail_field("", "the plan is not valid JSON");
  if (!root.is_object()) return fail_field("", "the plan must be a JSON object");
  REFRAIN_RETURN_IF_ERROR(check_names(
      root, "",
      {"cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "max_num_seqs",
       "max_num_batched_tokens", "num_speculative_tokens", "uniform_query_lens",
       "attention_support", "piecewise_available", "enforce_eager", "disable_padding",
       "max_padding_ratio", "lora", "capture_hidden_mode", "batches"}));
  PlanInput input;
  REFRAIN_RETURN_IF_ERROR(read_options(root, input.options));
  REFRAIN_RETURN_IF_ERROR(
      optional_field(root, "attention_support", false, [&](const Json& value) -> Status {
        REFRAIN_ASSIGN_OR_RETURN(input.groups, read_groups(value));
        return {};
      }));
  REFRAIN_RETURN_IF_ERROR(
      optional_field(root, "piecewise_available", false, [&](const Json& value) -> Status {
        REFRAIN_ASSIGN_OR_RETURN(input.piecewise_available,
                                 read_bool(value, "piecewise_available"));
        return {};
      }));
  const auto batches = root.find("batches");
  if (batches == root.end()) {
    return fail_field("batches", "batches is missing; give a list of batches, which may be empty");
  }
  REFRAIN_ASSIGN_OR_RETURN(input.batches, read_batches(*batches));
  return input;
}

// What only some configurations have.
void describe_further(const BatchDescriptor& key, const CudagraphConfig& config, Json& json) {
  if (config.lora) json["has_lora"] = key.has_lora;
  if (config.capture_hidden_mode != ipc::CaptureHiddenMode::kNull)
    json["capture_hidden_mode"] = ipc::to_string(key.hidden);
}

Json describe_key(const BatchDescriptor& key, RuntimeMode mode, const CudagraphConfig& config) {
  Json json = {{"num_tokens", key.num_tokens}};
  if (mode != RuntimeMode::kPiecewise) {
    json["num_reqs"] = key.num_reqs;
    json["uniform"] = key.uniform;
  }
  describe_further(key, config, json);
  return json;
}

Json describe_dispatch(const Dispatch& dispatch, int32_t tokens, const CudagraphConfig& config) {
  Json json = {{"mode", ipc::to_string(dispatch.mode)},
               {"num_tokens", dispatch.key.num_tokens},
               {"num_reqs", dispatch.key.num_reqs},
               {"uniform", dispatch.key.uniform},
               {"paddings", dispatch.key.num_tokens - tokens}};
  describe_further(dispatch.key, config, json);
  return json;
}

Result<std::string> explain(PlanInput input) {
  REFRAIN_ASSIGN_OR_RETURN(
      const CudagraphConfig config,
      worker::resolve_cudagraph_config(input.options, input.groups, input.piecewise_available));
  CudagraphDispatcher dispatcher(config);
  dispatcher.set_captured();

  Json plan;
  plan["cudagraph_mode"] = worker::to_string(config.mode);
  plan["warnings"] = config.warnings;
  plan["capture_sizes"] = config.capture_sizes;
  plan["uniform_query_len"] = config.uniform_query_len();
  if (config.uniform_query_lens.size() > 1) plan["uniform_query_lens"] = config.uniform_query_lens;
  for (RuntimeMode mode : {RuntimeMode::kFull, RuntimeMode::kPiecewise}) {
    Json keys = Json::array();
    for (const BatchDescriptor& key : dispatcher.keys(mode)) {
      keys.push_back(describe_key(key, mode, config));
    }
    plan["keys"][ipc::to_string(mode)] = std::move(keys);
  }
  plan["dispatch"] = Json::array();
  for (PlanBatch& batch : input.batches) {
    batch.shape.uniform = std::ranges::any_of(config.uniform_query_lens, [&batch](int32_t q) {
      return worker::is_uniform_decode(batch.query_lens, batch.context_lens, q);
    });
    if (batch.shape.hidden > config.capture_hidden_mode) {
      const std::string field =
          fmt::format("batches[{}].capture_hidden_mode", plan["dispatch"].size());
      return fail_field(field, "{} is {}, and the keys have {}", field,
                        ipc::to_string(batch.shape.hidden),
                        ipc::to_string(config.capture_hidden_mode));
    }
    plan["dispatch"].push_back(
        describe_dispatch(dispatcher.dispatch(batch.shape), batch.shape.num_tokens, config));
  }
  return plan.dump(2);
}

}  // namespace

Result<std::string> explain_plan(const std::string& text) {
  REFRAIN_ASSIGN_OR_RETURN(PlanInput input, read_plan(text));
  return explain(std::move(input));
}

Result<std::string> explain_plan(const ipc::WorkerConfig& config, const std::string& batches) {
  PlanInput input;
  input.options = worker::cudagraph_options(config);
  REFRAIN_ASSIGN_OR_RETURN(input.batches, read_batches(Json::parse(batches, nullptr, false)));
  return explain(std::move(input));
}

std::string plan_error(const Error& error) {
  const Json json = {{"error", {{"field", error.field}, {"message", error.message}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace refrain
