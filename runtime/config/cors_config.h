#pragma once
// Which pages of other origins a browser lets use the server (CORS), by vLLM's names. vLLM allows
// every origin by default; here it is none, so that no page a user looks at can use a server
// without keys on that user's machine.

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace CLI {
class App;
}

namespace refrain {

struct CorsConfig {
  std::vector<std::string> allowed_origins;  // scheme://host[:port], or * for all; empty: no CORS
  bool allow_credentials = false;
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
};

// Declares --allowed-origins and its companions; parsing fills `cors`, which must outlive the app.
void add_cors_options(CLI::App& app, CorsConfig& cors, const std::string& group);

// ["a", "b"], or a,b.
Result<std::vector<std::string>> parse_string_list(const std::string& option,
                                                   const std::string& text);

}  // namespace refrain
