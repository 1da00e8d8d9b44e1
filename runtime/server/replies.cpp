#include "runtime/server/replies.h"

#include <chrono>

namespace refrain {

int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void Replies::send(const Exchange& exchange, HttpReply reply) const {
  metrics_->count_http(reply.status);
  exchange->reply(std::move(reply));
}

void Replies::json(const Exchange& exchange, const Json& json, int status) const {
  send(exchange, {status, "application/json", dump(json), {}});
}

void Replies::error(const Exchange& exchange, const Error& error) const {
  send(exchange, error_reply(error, *engine_));
}

}  // namespace refrain
