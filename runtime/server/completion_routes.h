#pragma once
// The routes that generate text: completions, chats, and chats in Anthropic's shape. Any thread.

#include "runtime/server/request_reader.h"

namespace refrain {

class CompletionRoutes {
 public:
  // All outlive it.
  CompletionRoutes(const EngineConfig& config, TextWork& work, RequestReader& reader,
                   Replies replies)
      : config_(config), work_(work), reader_(reader), replies_(std::move(replies)) {}

  void add_to(RouteTable& table);

 private:
  void complete(HttpRequest& request, const Exchange& exchange, bool chat);
  void message(HttpRequest& request, const Exchange& exchange);

  const EngineConfig& config_;
  TextWork& work_;
  RequestReader& reader_;
  const Replies replies_;
};

}  // namespace refrain
