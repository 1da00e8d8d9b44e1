#pragma once
// The requests of a load, made before it begins: made-up lengths or a file's. Pure but for the
// files.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/load/load_options.h"

namespace refrain {

namespace text {
class Tokenizer;
}

struct LoadPrompt {
  std::vector<int32_t> ids;  // or text, or messages
  std::string text;
  std::shared_ptr<const nlohmann::json> messages;
  int64_t max_tokens = 0;
};

struct Load {
  std::vector<LoadPrompt> prompts;  // --num-prompts, in the order in which they are sent
  std::vector<double> starts;       // seconds after the beginning, ascending
};

// `tokenizer` may be null. The same options give the same load on every machine.
Result<Load> make_load(const LoadOptions& options, const text::Tokenizer* tokenizer);

// The body that is sent for a prompt. `extra`: the object of --extra-body.
std::string request_body(const LoadOptions& options, const nlohmann::json& extra,
                         const LoadPrompt& prompt);

}  // namespace refrain
