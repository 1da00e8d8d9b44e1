#pragma once
// The routes of models that pool: embeddings, poolings, scores, rankings. Any thread.

#include "runtime/server/request_reader.h"

namespace refrain {

class PoolingRoutes {
 public:
  // All outlive it.
  PoolingRoutes(const Engine& engine, TextWork& work, RequestReader& reader, Replies replies)
      : engine_(engine), work_(work), reader_(reader), replies_(std::move(replies)) {}

  void add_to(RouteTable& table);

 private:
  void pool(HttpRequest& request, const Exchange& exchange, PoolingRequest::Kind kind,
            const char* id_begin);
  Result<ApiRequest> parse(HttpRequest request, PoolingRequest::Kind kind) const;

  const Engine& engine_;
  TextWork& work_;
  RequestReader& reader_;
  const Replies replies_;
};

}  // namespace refrain
