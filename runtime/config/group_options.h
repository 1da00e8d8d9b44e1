#pragma once
// The options that say which groups of workers there are and what they are for, and the names that
// other servers have for them.

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"

namespace CLI {
class App;
}

namespace refrain {

void add_group_options(CLI::App& app, EngineConfig& config, const char* group);
// A worker's: what its group is for, empty where it is not said.
void add_role_options(CLI::App& app, std::string& role);
// Checks them together; errors name the option.
Status finish_groups(EngineConfig& config, const ModelConfig& model);

// both, prefill or decode (SGLang's null is both).
Result<ipc::GroupRole> parse_role(const std::string& name);
// What vLLM's --kv-transfer-config says: kv_producer is prefill, kv_consumer decode, kv_both both.
Result<ipc::GroupRole> role_of_kv_transfer_config(const std::string& json);

}  // namespace refrain
