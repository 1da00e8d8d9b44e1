#include "runtime/server/model_routes.h"

#include "runtime/server/served_models.h"

namespace refrain {
namespace {

constexpr std::string_view kPathBegin = "/v1/models/";  // and the name, which may have slashes

}  // namespace

ModelRoutes::ModelRoutes(const Engine& engine, Replies replies)
    : engine_(engine), replies_(std::move(replies)), started_(now_seconds()) {}

void ModelRoutes::add_to(RouteTable& table) {
  table.add("/v1/models",
            {.method = "GET", .handle = std::bind_front(&ModelRoutes::get_all, this)});
  table.add_below(std::string(kPathBegin),
                  {.method = "GET", .handle = std::bind_front(&ModelRoutes::get_one, this)});
}

Json ModelRoutes::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "refrain"},
          {"root", engine_.config().served_model_names.front()},
          {"parent", nullptr},
          {"max_model_len", engine_.config().worker.max_model_len}};
}

Json ModelRoutes::adapter_json(const AdapterSource& adapter) const {
  Json json = model_json(adapter.name);
  json["root"] = adapter.root;
  json["parent"] = engine_.config().served_model_names.front();
  return json;
}

void ModelRoutes::get_all(HttpRequest&, const Exchange& exchange) {
  Json data = Json::array();
  for (const std::string& name : engine_.config().served_model_names)
    data.push_back(model_json(name));
  for (const AdapterSource& adapter : engine_.adapters()) data.push_back(adapter_json(adapter));
  replies_.json(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void ModelRoutes::get_one(HttpRequest& request, const Exchange& exchange) {
  const std::string name = request.path.substr(kPathBegin.size());
  if (auto known = check_model(engine_, name); !known)
    return replies_.error(exchange, known.error());
  for (const AdapterSource& adapter : engine_.adapters())
    if (adapter.name == name) return replies_.json(exchange, adapter_json(adapter));
  replies_.json(exchange, model_json(name));
}

}  // namespace refrain
