#include "runtime/launch/generate.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "runtime/base/log.h"
#include "runtime/launch/coordinator.h"
#include "runtime/launch/local_engine.h"
#include "runtime/server/api_response.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;

struct Line {
  GenerateRequest request;
  bool wants_logprobs = false;
};

tl::unexpected<Error> at_line(const std::string& file, size_t number, Error error) {
  error.message = fmt::format("{}:{}: {}", file, number, error.message);
  return forward_error(std::move(error));
}

Result<std::vector<TokenId>> prompt_of(const Json& json, const OrderedJson& ordered,
                                       const TextSide& text) {
  const JsonFields fields(json);
  const int given = fields.has("prompt") + fields.has("messages") + fields.has("prompt_ids");
  if (given != 1) {
    return fail_field("prompt", "needs exactly one of prompt, messages and prompt_ids");
  }
  if (const Json* ids = fields.get("prompt_ids")) return read_token_ids(*ids, "prompt_ids");
  if (fields.has("messages")) {
    REFRAIN_ASSIGN_OR_RETURN(const ChatInput input,
                             read_chat_input(ordered, /*trust_chat_template=*/true));
    REFRAIN_ASSIGN_OR_RETURN(ChatPrompt chat, tokenize_chat(text, input));
    return std::move(chat.ids);
  }
  const Json* prompt = fields.get("prompt");
  if (!prompt->is_string()) return fail_field("prompt", "prompt must be a string");
  return text.tokenizer->encode(prompt->get<std::string>(), /*add_special_tokens=*/true);
}

// `logprobs`: a number (completions' way), or true with top_logprobs (chat's way).
Status read_logprobs(const Json& json, SamplingParams& params) {
  JsonFields fields(json);
  const Json* value = fields.get("logprobs");
  if (value == nullptr) return {};
  if (value->is_boolean()) {
    const auto top = fields.integer("top_logprobs", 0, 20).value_or(0);
    if (value->get<bool>()) params.logprobs = static_cast<int32_t>(top);
  } else if (const auto top = fields.integer("logprobs", 0, 20)) {
    params.logprobs = static_cast<int32_t>(*top);
  }
  return fields.status();
}

Result<Line> parse_line(const std::string& text, const TextSide& side,
                        const GenerationDefaults& defaults) {
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson ordered, parse_ordered_json(text));
  const Json json(ordered);
  if (!json.is_object()) return fail(ErrorCode::kInvalidArgument, "a line must be a JSON object");
  Line line;
  SamplingParams& params = line.request.sampling;
  REFRAIN_ASSIGN_OR_RETURN(line.request.prompt, prompt_of(json, ordered, side));
  apply_defaults(defaults, params);
  REFRAIN_RETURN_IF_ERROR(read_sampling_params(json, params));
  REFRAIN_RETURN_IF_ERROR(read_logprobs(json, params));
  JsonFields fields(json);
  if (fields.integer("n", 1, INT32_MAX).value_or(1) != 1) {
    fields.fail_on("n", "n must be 1, since a line has one answer; repeat the line instead");
  }
  params.max_tokens = fields.integer("max_tokens", 1, INT32_MAX).value_or(kDefaultMaxTokens);
  if (const auto most = fields.integer("max_completion_tokens", 1, INT32_MAX)) {
    params.max_tokens = *most;
  }
  params.max_tokens =
      std::min(params.max_tokens, defaults.max_new_tokens.value_or(params.max_tokens));
  REFRAIN_RETURN_IF_ERROR(fields.status());
  line.wants_logprobs = params.logprobs >= 0;
  return line;
}

Result<std::vector<std::string>> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return fail(ErrorCode::kNotFound, "--prompts {} cannot be read", path);
  }
  std::istream& in = path == "-" ? std::cin : file;
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  return lines;
}

Json logprobs_of(const RequestOutput& output) {
  Json list = Json::array();
  for (const TokenOutput& token : output.tokens) {
    Json top = Json::array();
    for (const TokenLogprob& other : token.top) top.push_back({other.token, other.logprob});
    list.push_back(
        {{"token_id", token.token}, {"logprob", token.logprob}, {"top", std::move(top)}});
  }
  return list;
}

std::string answer_line(const std::vector<TokenId>& prompt, const RequestOutput& output,
                        bool logprobs) {
  Json ids = Json::array();
  for (const TokenOutput& token : output.tokens) ids.push_back(token.token);
  Json json = {{"prompt_ids", prompt},
               {"output_ids", std::move(ids)},
               {"text", output.text},
               {"finish_reason", to_string(output.finish)}};
  if (logprobs) json["logprobs"] = logprobs_of(output);
  return dump(json) + "\n";
}

// Before anything is computed: an answer that cannot be kept is no use.
Status check_output(const std::string& path) {
  if (path == "-") return {};
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::is_directory(path)) {
    return fail_field("--output", "--output {} is a directory; name a file", path);
  }
  if (!std::filesystem::is_directory(folder)) {
    return fail_field("--output", "--output {} cannot be written: there is no directory {}", path,
                      folder.string());
  }
  return {};
}

// The whole file or nothing: written beside it, then renamed.
Status write_output(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  const std::string temporary = path + ".part";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    return fail(ErrorCode::kInvalidArgument, "--output {} cannot be written", path);
  }
  return {};
}

Result<std::vector<std::string>> input_lines(const GenerateOptions& options) {
  if (!options.prompts.empty() && !options.texts.empty()) {
    return fail_field("--prompt", "--prompt and --prompts exclude each other; give one of them");
  }
  if (!options.prompts.empty()) return read_lines(options.prompts);
  std::vector<std::string> lines;
  for (const std::string& text : options.texts) lines.push_back(dump(Json{{"prompt", text}}));
  if (lines.empty())
    return fail_field("--prompts", "no prompts: use --prompts FILE or --prompt TEXT");
  return lines;
}

Status generate(const GenerateOptions& options) {
  REFRAIN_ASSIGN_OR_RETURN(const auto lines, input_lines(options));
  REFRAIN_RETURN_IF_ERROR(check_output(options.output));
  REFRAIN_ASSIGN_OR_RETURN(auto local, LocalEngine::create(options.config));
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<bool> wants_logprobs;
  const std::string file = options.prompts.empty() ? "--prompt" : options.prompts;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find_first_not_of(" \t\r") == std::string::npos) continue;
    auto line = parse_line(lines[i], local->text(), local->engine().config().generation_defaults);
    if (!line) return at_line(file, i + 1, line.error());
    if (Status status = local->engine().check(line->request); !status) {
      return at_line(file, i + 1, status.error());
    }
    prompts.push_back(line->request.prompt);
    wants_logprobs.push_back(line->wants_logprobs);
    requests.push_back(std::move(line->request));
  }
  if (requests.empty()) return fail_field("--prompts", "{} holds no prompts", file);
  REFRAIN_RETURN_IF_ERROR(local->start());
  REFRAIN_ASSIGN_OR_RETURN(const auto outputs, local->run(std::move(requests)));
  std::string text;
  for (size_t i = 0; i < outputs.size(); ++i) {
    text += options.prompts.empty() ? outputs[i].text + "\n"
                                    : answer_line(prompts[i], outputs[i], wants_logprobs[i]);
  }
  REFRAIN_RETURN_IF_ERROR(write_output(options.output, text));
  const EngineStats stats = local->engine().stats();
  log::debug("{} preemptions; graphs that ran:\n{}", stats.preemptions, cudagraph_text(stats));
  return {};
}

}  // namespace

int run_generate(GenerateOptions options) {
  const Status status = generate(options);
  return status ? kExitOk : report(status.error());
}

}  // namespace refrain
