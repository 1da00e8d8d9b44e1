#include "runtime/config/group_options.h"

#include <CLI/CLI.hpp>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/config/option_values.h"

namespace refrain {
namespace {

// One server starts and routes to all groups, so that it has no role of its own.
void refuse_role(const char* option, const Result<ipc::GroupRole>& role) {
  if (!role) throw CLI::ValidationError(option, role.error().message);
  if (*role == ipc::GroupRole::kBoth) {
    log::info("{}: groups compute prompts and answers unless --prefill-groups says otherwise",
              option);
    return;
  }
  throw CLI::ValidationError(
      option, fmt::format("one server has the groups of both kinds and routes between them: give "
                          "--prefill-groups N --decode-groups M instead (a worker that is started "
                          "by hand takes --role {})",
                          ipc::to_string(*role)));
}

Status check_ranks(const char* option, int32_t ranks, const ModelConfig& model) {
  if (ranks <= model.num_heads) return {};
  return fail_field(
      option,
      "{} {} is more than the model's {} attention heads (num_attention_heads), which "
      "cannot be spread over it",
      option, ranks, model.num_heads);
}

}  // namespace

void add_group_options(CLI::App& app, EngineConfig& config, const char* group) {
  app.add_option("--data-parallel-size,--dp,--dp-size", config.data_parallel_size,
                 "Groups of such workers, each with a copy of the model, that share the requests")
      ->check(CLI::Range(1, EngineConfig::kMostGroups))
      ->group(group);
  app.add_option("--prefill-groups", config.prefill_groups,
                 "Groups that compute prompts only; groups of --decode-groups go on from their KV "
                 "cache (docs/prefill-decode.md)")
      ->check(CLI::Range(0, EngineConfig::kMostGroups))
      ->group(group);
  app.add_option("--decode-groups", config.decode_groups,
                 "Groups that compute answers, with --prefill-groups")
      ->check(CLI::Range(0, EngineConfig::kMostGroups))
      ->group(group);
  app.add_option("--prefill-tensor-parallel-size", config.prefill_tensor_parallel_size,
                 "Workers of a prefill group (default: --tensor-parallel-size)")
      ->check(CLI::Range(1, 64))
      ->group(group);
  app.add_option("--decode-tensor-parallel-size", config.decode_tensor_parallel_size,
                 "Workers of a decode group (default: --tensor-parallel-size)")
      ->check(CLI::Range(1, 64))
      ->group(group);
  app.add_option("--kv-transfer-timeout", config.kv_transfer_timeout,
                 "Seconds without progress after which KV blocks on their way to a decode group "
                 "are given up and the prompt is computed again")
      ->check(number_in(0.1, 3600.0))
      ->group(group);
  app.add_option(
         "--kv-transfer-policy", config.kv_transfer_policy,
         "auto: a prompt whose KV blocks would take longer to move than the decode group to "
         "compute it, by what was measured, is computed there; always: blocks move")
      ->check(CLI::IsMember({"auto", "always"}))
      ->group(group);
  app.add_option(
         "--kv-transfer-backend,--disaggregation-transfer-backend",
         config.worker.kv_transfer_backend,
         "How KV blocks move. auto: ranks of one machine read each other's memory, others over "
         "TCP with checksums, encrypted; tcp: always so; ucx: UCX (InfiniBand, RoCE, shared "
         "memory), which must be installed and neither encrypts nor authenticates")
      ->check(CLI::IsMember({"auto", "tcp", "ucx"}))
      ->group(group);
  app.add_option_function<std::string>(
         "--kv-transfer-config",
         [](const std::string& json) {
           refuse_role("--kv-transfer-config", role_of_kv_transfer_config(json));
         },
         "vLLM's object (JSON): kv_role kv_both is how groups are; for the others "
         "--prefill-groups and --decode-groups")
      ->group(group);
  app.add_option_function<std::string>(
         "--disaggregation-mode",
         [](const std::string& mode) { refuse_role("--disaggregation-mode", parse_role(mode)); },
         "SGLang's name: null is how groups are; for the others --prefill-groups and "
         "--decode-groups")
      ->group(group);
}

void add_role_options(CLI::App& app, std::string& role) {
  const auto set = [&role](const char* option, const Result<ipc::GroupRole>& told) {
    if (!told) throw CLI::ValidationError(option, told.error().message);
    role = ipc::to_string(*told);
  };
  app.add_option_function<std::string>(
      "--role,--disaggregation-mode",
      [set](const std::string& name) { set("--role", parse_role(name)); },
      "What this worker's group is for: both, prefill or decode; it is refused where the "
      "coordinator says otherwise");
  app.add_option_function<std::string>(
      "--kv-transfer-config",
      [set](const std::string& json) {
        set("--kv-transfer-config", role_of_kv_transfer_config(json));
      },
      "vLLM's object (JSON) whose kv_role says the role");
}

Status finish_groups(EngineConfig& config, const ModelConfig& model) {
  config.worker.kv_transfer = config.has_roles();
  const int32_t prefill = config.prefill_groups, decode = config.decode_groups;
  if (!config.has_roles()) {
    for (const auto& [option, ranks] :
         {std::pair{"--prefill-tensor-parallel-size", config.prefill_tensor_parallel_size},
          std::pair{"--decode-tensor-parallel-size", config.decode_tensor_parallel_size}})
      if (ranks > 0)
        return fail_field(option, "{} needs --prefill-groups and --decode-groups", option);
    if (config.worker.kv_transfer_backend != "auto")
      return fail_field("--kv-transfer-backend",
                        "--kv-transfer-backend needs --prefill-groups and --decode-groups");
    return check_ranks("--tensor-parallel-size", config.worker.tensor_parallel_size, model);
  }
  if (prefill == 0 || decode == 0) {
    const char* missing = prefill == 0 ? "--prefill-groups" : "--decode-groups";
    return fail_field(missing,
                      "{} is missing: groups that compute prompts and groups that compute answers "
                      "need each other; give both",
                      missing);
  }
  if (config.data_parallel_size > 1)
    return fail_field("--data-parallel-size",
                      "--data-parallel-size counts groups that do all; with --prefill-groups and "
                      "--decode-groups leave it out");
  if (prefill + decode > EngineConfig::kMostGroups)
    return fail_field("--decode-groups",
                      "--prefill-groups {} and --decode-groups {} are more than {} groups", prefill,
                      decode, EngineConfig::kMostGroups);
  if (!config.worker.pooling.empty())
    return fail_field("--prefill-groups",
                      "--prefill-groups: a model that pools gives no answers for decode groups; "
                      "--data-parallel-size starts several groups of it");
  for (const Group& group : config.groups()) {
    const bool prefills = group.role == ipc::GroupRole::kPrefill;
    const bool own =
        (prefills ? config.prefill_tensor_parallel_size : config.decode_tensor_parallel_size) > 0;
    const char* option = !own       ? "--tensor-parallel-size"
                         : prefills ? "--prefill-tensor-parallel-size"
                                    : "--decode-tensor-parallel-size";
    REFRAIN_RETURN_IF_ERROR(check_ranks(option, group.num_ranks(), model));
  }
  return {};
}

Result<ipc::GroupRole> parse_role(const std::string& name) {
  if (name == "both" || name == "null") return ipc::GroupRole::kBoth;
  if (name == "prefill") return ipc::GroupRole::kPrefill;
  if (name == "decode") return ipc::GroupRole::kDecode;
  return fail_field("role", "\"{}\" is no role of a group; it must be both, prefill or decode",
                    name);
}

Result<ipc::GroupRole> role_of_kv_transfer_config(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto role = json.is_object() ? json.find("kv_role") : json.end();
  if (!json.is_object() || role == json.end() || !role->is_string())
    return fail_field("kv-transfer-config",
                      "an object with kv_role \"kv_producer\", \"kv_consumer\" or \"kv_both\" is "
                      "needed, got: {}",
                      text.substr(0, 80));
  if (*role == "kv_producer") return ipc::GroupRole::kPrefill;
  if (*role == "kv_consumer") return ipc::GroupRole::kDecode;
  if (*role == "kv_both") return ipc::GroupRole::kBoth;
  return fail_field("kv-transfer-config",
                    "kv_role {} is none of \"kv_producer\", \"kv_consumer\" and \"kv_both\"",
                    role->dump());
}

std::vector<Group> EngineConfig::groups() const {
  std::vector<Group> all;
  const auto add = [&](int32_t count, ipc::GroupRole role, int32_t ranks) {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t first = all.empty() ? 0 : all.back().first_worker + all.back().num_ranks();
      all.push_back({static_cast<int32_t>(all.size()),
                     role,
                     {ranks > 0 ? ranks : worker.tensor_parallel_size},
                     first});
    }
  };
  if (has_roles()) {
    add(prefill_groups, ipc::GroupRole::kPrefill, prefill_tensor_parallel_size);
    add(decode_groups, ipc::GroupRole::kDecode, decode_tensor_parallel_size);
  } else {
    add(data_parallel_size, ipc::GroupRole::kBoth, 0);
  }
  return all;
}

ipc::WorkerConfig EngineConfig::worker_of(const Group& group) const {
  ipc::WorkerConfig of = worker;
  of.tensor_parallel_size = group.num_ranks();
  // A draft model's blocks are written behind the flags of the model's.
  of.publish_layers = group.role == ipc::GroupRole::kPrefill && !of.draft_model;
  if (cudagraph_mode_given) return of;
  if (group.role == ipc::GroupRole::kPrefill) of.cudagraph_mode = "PIECEWISE";
  if (group.role == ipc::GroupRole::kDecode) of.cudagraph_mode = "FULL_DECODE_ONLY";
  return of;
}

int32_t EngineConfig::num_workers() const {
  const Group last = groups().back();
  return last.first_worker + last.num_ranks();
}

}  // namespace refrain
