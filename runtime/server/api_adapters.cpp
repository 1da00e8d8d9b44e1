// The routes that load and unload LoRA adapters, as vLLM's do. Off without --lora-dir; what they
// load is a folder there, whatever else a path says.

#include <algorithm>
#include <filesystem>

#include "runtime/server/api_response.h"
#include "runtime/server/api_server.h"

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

Result<Json> ApiServer::adapter_body(const HttpRequest& request) const {
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

Result<AdapterSource> ApiServer::read_adapter(const HttpRequest& request) const {
  REFRAIN_ASSIGN_OR_RETURN(const Json body, adapter_body(request));
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

// The engine may call it when this server is gone.
AdapterDone ApiServer::adapter_answer(const Exchange& exchange, std::string text) const {
  return [&engine = engine_, metrics = metrics_, exchange,
          text = std::move(text)](const Status& status) {
    HttpReply reply{200, "text/plain; charset=utf-8", text, {}};
    if (!status) reply = error_reply(status.error(), engine);
    metrics->count_http(reply.status);
    exchange->reply(std::move(reply));
  };
}

void ApiServer::post_load_adapter(HttpRequest& request, const Exchange& exchange) {
  post_text(request, exchange,
            [this](const HttpRequest& request, const KeyLease& /*held*/, const Exchange& exchange) {
              auto source = read_adapter(request);
              if (!source) return reply_error(exchange, source.error());
              const std::string text =
                  fmt::format("Success: LoRA adapter '{}' added successfully.", source->name);
              engine_.load_adapter(std::move(*source), adapter_answer(exchange, text));
            });
}

void ApiServer::post_unload_adapter(HttpRequest& request, const Exchange& exchange) {
  const auto body = adapter_body(request);
  if (!body) return reply_error(exchange, body.error());
  const std::string name = text_of(*body, "lora_name");
  engine_.unload_adapter(
      name, adapter_answer(exchange,
                           fmt::format("Success: LoRA adapter '{}' removed successfully.", name)));
}

}  // namespace refrain
