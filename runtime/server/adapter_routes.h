#pragma once
// The routes that load and unload LoRA adapters, as vLLM's do. Off without --lora-dir; what they
// load is a folder there, whatever else a path says. Any thread.

#include <string>

#include "runtime/server/text_work.h"

namespace refrain {

class AdapterRoutes {
 public:
  // All outlive it.
  AdapterRoutes(Engine& engine, TextWork& work, Replies replies)
      : engine_(engine), work_(work), replies_(std::move(replies)) {}

  void add_to(RouteTable& table);

 private:
  void load(HttpRequest& request, const Exchange& exchange);
  void unload(HttpRequest& request, const Exchange& exchange);
  Result<Json> read_body(const HttpRequest& request) const;
  Result<AdapterSource> read_source(const HttpRequest& request) const;
  // Answers with a text, as vLLM does.
  AdapterDone answer(const Exchange& exchange, std::string text) const;

  Engine& engine_;
  TextWork& work_;
  const Replies replies_;
};

}  // namespace refrain
