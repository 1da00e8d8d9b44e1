#pragma once
// /v1/responses: a chat in another shape, and the responses that are kept for later ones. Any
// thread.

#include "runtime/server/request_reader.h"
#include "runtime/server/response_store.h"
#include "runtime/server/responses_request.h"

namespace refrain {

class ResponseRoutes {
 public:
  // All outlive it.
  ResponseRoutes(const EngineConfig& config, const ApiKeys& keys, TextWork& work,
                 RequestReader& reader, Replies replies)
      : config_(config), keys_(keys), work_(work), reader_(reader), replies_(std::move(replies)) {}

  void add_to(RouteTable& table);

 private:
  void post(HttpRequest& request, const Exchange& exchange);
  void get(HttpRequest& request, const Exchange& exchange);
  Result<ResponsesRequest> parse(const std::string& text, const std::string& owner);

  const EngineConfig& config_;
  const ApiKeys& keys_;
  TextWork& work_;
  RequestReader& reader_;
  const Replies replies_;
  // Sessions put their answers there.
  const std::shared_ptr<ResponseStore> kept_ = std::make_shared<ResponseStore>(size_t{64} << 20);
};

}  // namespace refrain
