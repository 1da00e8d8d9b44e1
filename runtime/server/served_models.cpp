#include "runtime/server/served_models.h"

#include <fmt/format.h>

#include <algorithm>

namespace refrain {

Status check_model(const Engine& engine, const std::string& name) {
  const auto& names = engine.config().served_model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  if (engine.find_adapter(name)) return {};
  return tl::make_unexpected(Error{
      ErrorCode::kNotFound,
      fmt::format("the model '{}' does not exist; this server serves '{}'", name, names.front()),
      "model"});
}

}  // namespace refrain
