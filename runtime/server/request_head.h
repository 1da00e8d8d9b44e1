#pragma once
// What the API reads of a request's head. Pure functions.

#include <memory>
#include <string>

#include "runtime/server/api_keys.h"
#include "runtime/server/http_server.h"

namespace refrain {

std::string header_of(const HttpRequest& request, const char* name);  // empty: there is none
bool has_body(const HttpRequest& request);
bool has_json_type(const HttpRequest& request);
// The key that the request has, of OpenAI's clients or of Anthropic's; null: none of ours.
std::shared_ptr<ApiKey> key_of(const ApiKeys& keys, const HttpRequest& request);
// The client's own X-Request-Id, which its answer's id ends with, as in vLLM; empty where it gives
// none.
Result<std::string> request_id(const HttpRequest& request);

}  // namespace refrain
