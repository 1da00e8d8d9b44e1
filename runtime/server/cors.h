#pragma once
// What browsers are told about pages of other origins (the Fetch standard's CORS protocol).
// Immutable, so any thread.

#include <optional>
#include <string>

#include "runtime/config/cors_config.h"
#include "runtime/server/http_server.h"

namespace refrain {

class CorsPolicy {
 public:
  explicit CorsPolicy(CorsConfig config);

  bool allows(const std::string& origin) const;
  // What every answer to this request carries, errors too.
  HttpHeaders answer_headers(const HttpRequest& request) const;
  // The answer to a browser's question before the request itself: 204, or 403 with the reason.
  // Nothing when it is no such question, or no origin is allowed at all.
  std::optional<HttpReply> preflight(const HttpRequest& request) const;

 private:
  std::optional<std::string> objection(const HttpRequest& request) const;

  const CorsConfig config_;
  const bool all_origins_;
  const bool all_methods_;
  const bool all_headers_;
};

}  // namespace refrain
