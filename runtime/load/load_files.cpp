#include "runtime/load/load_files.h"

#include <fstream>

#include "runtime/base/json.h"
#include "runtime/load/python_random.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 24;

// The first of `names` that the line has.
Result<int64_t> length_of(const Json& line, const std::vector<const char*>& names,
                          int64_t otherwise) {
  for (const char* name : names) {
    const auto at = line.find(name);
    if (at == line.end() || at->is_null()) continue;
    if (!at->is_number_integer() || *at < 1 || *at > kMostTokens) {
      return fail(ErrorCode::kInvalidArgument, "{} must be a whole number from 1 to {}", name,
                  kMostTokens);
    }
    return at->get<int64_t>();
  }
  return otherwise;
}

Result<GivenPrompt> given_prompt(const Json& line, const LoadOptions& options) {
  GivenPrompt given;
  REFRAIN_ASSIGN_OR_RETURN(
      given.prompt.max_tokens,
      length_of(line, {"output_len", "output_tokens", "max_tokens"}, options.custom_output_len));
  if (const auto at = line.find("messages"); at != line.end()) {
    if (!options.is_chat()) {
      return fail(ErrorCode::kInvalidArgument, "messages need --endpoint /v1/chat/completions");
    }
    given.prompt.messages = std::make_shared<const Json>(*at);
    return given;
  }
  if (const auto at = line.find("prompt"); at != line.end() && at->is_string()) {
    given.prompt.text = at->get<std::string>();
    return given;
  }
  for (const char* name : {"prompt_ids", "prompt_token_ids"}) {
    const auto at = line.find(name);
    if (at == line.end()) continue;
    const bool ids = at->is_array() && !at->empty() && std::ranges::all_of(*at, [](const Json& id) {
                       return id.is_number_integer();
                     });
    if (!ids) return fail(ErrorCode::kInvalidArgument, "{} must be a list of token ids", name);
    if (options.is_chat()) {
      return fail(ErrorCode::kInvalidArgument, "a chat's prompt cannot be token ids");
    }
    given.prompt.ids = at->get<std::vector<int32_t>>();
    return given;
  }
  REFRAIN_ASSIGN_OR_RETURN(given.input_len, length_of(line, {"input_len"}, 0));
  if (given.input_len == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "it has none of prompt, prompt_ids, messages and input_len");
  }
  return given;
}

Result<std::ifstream> open_dataset(const LoadOptions& options) {
  std::ifstream file(options.dataset_path);
  if (!file) {
    return fail_field("--dataset-path", "{} cannot be read", options.dataset_path);
  }
  return file;
}

std::string value_of(const Json& conversation, size_t turn) {
  const Json& said = conversation[turn];
  const auto at = said.is_object() ? said.find("value") : said.end();
  return said.is_object() && at != said.end() && at->is_string() ? at->get<std::string>() : "";
}

// vLLM's limits: what is too short says nothing, what is too long outlives the rest.
bool usual_length(int64_t prompt, int64_t output, bool output_given) {
  constexpr int64_t kLeast = 4, kMostPrompt = 1024, kMostTotal = 2048;
  return prompt >= kLeast && (output_given || output >= kLeast) && prompt <= kMostPrompt &&
         prompt + output <= kMostTotal;
}

}  // namespace

Result<std::vector<GivenPrompt>> read_custom(const LoadOptions& options) {
  REFRAIN_ASSIGN_OR_RETURN(std::ifstream file, open_dataset(options));
  std::vector<GivenPrompt> given;
  std::string text;
  for (size_t number = 1; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    auto prompt = line.is_object() ? given_prompt(line, options)
                                   : fail(ErrorCode::kInvalidArgument, "it is no JSON object");
    if (!prompt) {
      return fail_field("--dataset-path", "{}, line {}: {}", options.dataset_path, number,
                        prompt.error().message);
    }
    given.push_back(std::move(*prompt));
  }
  if (given.empty()) return fail_field("--dataset-path", "{} has no line", options.dataset_path);
  return given;
}

Result<std::vector<GivenPrompt>> read_sharegpt(const LoadOptions& options,
                                               const text::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    return fail_field("--tokenizer",
                      "the lengths of {} are counted in tokens: say with --tokenizer DIR whose",
                      options.dataset_path);
  }
  REFRAIN_ASSIGN_OR_RETURN(std::ifstream file, open_dataset(options));
  const Json list = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    return fail_field("--dataset-path", "{} is no JSON list of conversations",
                      options.dataset_path);
  }
  std::vector<const Json*> order;
  for (const Json& item : list) {
    if (!item.is_object()) continue;
    const auto at = item.find("conversations");
    if (at != item.end() && at->is_array() && at->size() >= 2) order.push_back(&*at);
  }
  PythonRandom random(options.seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<size_t>(random.randrange(0, static_cast<int64_t>(i)))]);
  }
  std::vector<GivenPrompt> given;
  for (const Json* conversation : order) {
    if (static_cast<int64_t>(given.size()) == options.num_prompts) break;
    GivenPrompt made;
    made.prompt.text = value_of(*conversation, 0);
    REFRAIN_ASSIGN_OR_RETURN(const auto ids, tokenizer->encode(made.prompt.text, true));
    made.prompt.max_tokens = options.sharegpt_output_len;
    if (options.sharegpt_output_len == 0) {
      REFRAIN_ASSIGN_OR_RETURN(const auto answer,
                               tokenizer->encode(value_of(*conversation, 1), false));
      made.prompt.max_tokens = static_cast<int64_t>(answer.size());
    }
    if (!usual_length(static_cast<int64_t>(ids.size()), made.prompt.max_tokens,
                      options.sharegpt_output_len > 0)) {
      continue;
    }
    given.push_back(std::move(made));
  }
  if (given.empty()) {
    return fail_field("--dataset-path", "{} has no conversation of a usual length",
                      options.dataset_path);
  }
  return given;
}

}  // namespace refrain
