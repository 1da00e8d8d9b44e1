// The routes of models: all of them, and one by its name.
#include "runtime/server/api_server.h"

namespace refrain {
namespace {

constexpr std::string_view kModelPath = "/v1/models/";  // and the name, which may have slashes

}  // namespace

const ApiServer::RouteEntry* ApiServer::route_of(const HttpRequest& request) {
  static const RouteEntry model = {"GET", &ApiServer::get_model};
  static const RouteEntry response = {"GET", &ApiServer::get_response};
  const auto at = routes().find(request.path);
  if (at != routes().end()) return &at->second;
  if (request.path.starts_with(kResponsePath)) return &response;
  return request.path.starts_with(kModelPath) ? &model : nullptr;
}

Json ApiServer::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "refrain"},
          {"root", engine_.config().served_model_names.front()},
          {"parent", nullptr},
          {"max_model_len", engine_.config().worker.max_model_len}};
}

Json ApiServer::adapter_json(const AdapterSource& adapter) const {
  Json json = model_json(adapter.name);
  json["root"] = adapter.root;
  json["parent"] = engine_.config().served_model_names.front();
  return json;
}

void ApiServer::get_models(HttpRequest&, const Exchange& exchange) {
  Json data = Json::array();
  for (const std::string& name : engine_.config().served_model_names)
    data.push_back(model_json(name));
  for (const AdapterSource& adapter : engine_.adapters()) data.push_back(adapter_json(adapter));
  reply_json(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void ApiServer::get_model(HttpRequest& request, const Exchange& exchange) {
  const std::string name = request.path.substr(kModelPath.size());
  if (auto known = check_model(name); !known) return reply_error(exchange, known.error());
  for (const AdapterSource& adapter : engine_.adapters())
    if (adapter.name == name) return reply_json(exchange, adapter_json(adapter));
  reply_json(exchange, model_json(name));
}

}  // namespace refrain
