// Fuzzes the JSON bodies of the HTTP API: read, checked as every kind of request.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/server/messages_request.h"
#include "runtime/server/responses_request.h"

namespace {

void check_error(const refrain::Error& error) {
  if (error.message.empty()) std::abort();
}

void check(const refrain::Result<refrain::ApiRequest>& request) {
  if (!request) return check_error(request.error());
  if (request->n < 1 || request->n > refrain::kMaxChoices) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  if (const auto json = refrain::parse_json(body)) {
    check(refrain::parse_completion_request(*json));
  } else {
    check_error(json.error());
  }
  if (const auto json = refrain::parse_ordered_json(body)) {
    check(refrain::parse_chat_request(*json));
    check(refrain::parse_messages_request(*json, {}));
    const auto none = [](const std::string&) { return refrain::OrderedJson::array(); };
    const auto response = refrain::parse_responses_request(*json, {}, none);
    if (!response) check_error(response.error());
  } else {
    check_error(json.error());
  }
  return 0;
}
