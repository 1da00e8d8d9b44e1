#include "runtime/server/adapter_routes.h"

#include <algorithm>
#include <filesystem>

namespace refrain {
namespace {

constexpr size_t kMaxNameBytes = 256;

// The name of a folder directly in the directory: itself, or its path.
Result<std::string> folder_of(const std::string& given, const std::string& directory) {
  const std::filesystem::path path(given);
  if (path.has_parent_path() && path.parent_path() != std::filesystem::path(directory))
    return fail_field("lora_path", "lora_path must name a folder of the server's --lora-dir");
  return path.filename().string();
}

}  // namespace

void AdapterRoutes::add_to(RouteTable& table) {
  table.add("/v1/load_lora_adapter",
            {.method = "POST", .handle = std::bind_front(&AdapterRoutes::load, this)});
  table.add("/v1/unload_lora_adapter",
            {.method = "POST", .handle = std::bind_front(&AdapterRoutes::unload, this)});
}

Result<Json> AdapterRoutes::read_body(const HttpRequest& request) const {
  if (engine_.config().lora.directory.empty())
    return fail(ErrorCode::kNotFound,
                "LoRA adapters are neither loaded nor unloaded over HTTP without --lora-dir");
  REFRAIN_ASSIGN_OR_RETURN(Json body, parse_json(request.body));
  if (!body.is_object()) return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  const std::string name = text_of(body, "lora_name");
  if (name.empty()) return fail_field("lora_name", "lora_name is missing; it must be a text");
  if (name.size() > kMaxNameBytes)
    return fail_field("lora_name", "lora_name has {} bytes; at most {} are allowed", name.size(),
                      kMaxNameBytes);
  return body;
}

Result<AdapterSource> AdapterRoutes::read_source(const HttpRequest& request) const {
  REFRAIN_ASSIGN_OR_RETURN(const Json body, read_body(request));
  AdapterSource source;
  source.name = text_of(body, "lora_name");
  if (std::ranges::count(engine_.config().served_model_names, source.name) > 0)
    return fail_field("lora_name", "'{}' is a name of the model itself", source.name);
  const std::string path = text_of(body, "lora_path");
  if (path.empty()) return fail_field("lora_path", "lora_path is missing; it must be a text");
  const LoraPaths& paths = engine_.config().lora;
  REFRAIN_ASSIGN_OR_RETURN(source.module, folder_of(path, paths.directory));
  const auto directory = paths.find_folder(source.module);
  if (!directory) return fail_field("lora_path", "{}", directory.error().message);
  auto digest = adapter_digest(*directory);
  if (!digest) return fail_field("lora_path", "{}", digest.error().message);
  source.digest = std::move(*digest);
  source.root = directory->string();
  return source;
}

AdapterDone AdapterRoutes::answer(const Exchange& exchange, std::string text) const {
  return [replies = replies_, exchange, text = std::move(text)](const Status& status) {
    if (!status) return replies.error(exchange, status.error());
    replies.send(exchange, {200, "text/plain; charset=utf-8", text, {}});
  };
}

void AdapterRoutes::load(HttpRequest& request, const Exchange& exchange) {
  work_.post(
      request, exchange,
      [this](const HttpRequest& request, const KeyLease& /*held*/, const Exchange& exchange) {
        auto source = read_source(request);
        if (!source) return replies_.error(exchange, source.error());
        const std::string text =
            fmt::format("Success: LoRA adapter '{}' added successfully.", source->name);
        engine_.load_adapter(std::move(*source), answer(exchange, text));
      });
}

void AdapterRoutes::unload(HttpRequest& request, const Exchange& exchange) {
  work_.post(
      request, exchange,
      [this](const HttpRequest& request, const KeyLease& /*held*/, const Exchange& exchange) {
        const auto body = read_body(request);
        if (!body) return replies_.error(exchange, body.error());
        const std::string name = text_of(*body, "lora_name");
        const std::string text =
            fmt::format("Success: LoRA adapter '{}' removed successfully.", name);
        engine_.unload_adapter(name, answer(exchange, text));
      });
}

}  // namespace refrain
