#include "runtime/offline/generate.h"

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/offline/local_engine.h"
#include "runtime/offline/request_line.h"
#include "runtime/server/api_response.h"
#include "runtime/server/cudagraph_page.h"
#include "runtime/server/prompt_logprobs.h"

namespace refrain {
namespace {

// A line's request, and the form of its answer.
struct Line {
  GenerateRequest request;
  bool wants_logprobs = false;
  bool chat = false;
  std::optional<Error> error;  // instead of the request
  // Of a line of an OpenAI batch file, whose answers are batch lines.
  bool batch = false;
  Json custom_id;  // null: none given
};

Error at_line(const std::string& file, size_t number, Error error) {
  error.message = fmt::format("{}:{}: {}", file, number, error.message);
  return error;
}

// {"custom_id", "method", "url", "body"}: the body is the request, the url says of what kind.
Result<OrderedJson> batch_body(const OrderedJson& line) {
  const auto url = line.find("url");
  const std::string route = url != line.end() && url->is_string() ? url->get<std::string>() : "";
  if (route != "/v1/chat/completions" && route != "/v1/completions") {
    return fail_field("url", "url must be /v1/chat/completions or /v1/completions");
  }
  const OrderedJson& body = line["body"];
  if (!body.is_object()) return fail_field("body", "body must be a JSON object");
  if (body.contains("messages") != (route == "/v1/chat/completions")) {
    return fail_field("url", "{} and the fields of body do not fit each other", route);
  }
  return body;
}

Status parse_line(const std::string& text, LocalEngine& local, const GenerateOptions& options,
                  Line& line) {
  REFRAIN_ASSIGN_OR_RETURN(OrderedJson ordered, parse_ordered_json(text));
  if (!ordered.is_object())
    return fail(ErrorCode::kInvalidArgument, "a line must be a JSON object");
  if (const auto id = ordered.find("custom_id"); id != ordered.end()) line.custom_id = Json(*id);
  line.batch = ordered.contains("body");
  if (line.batch) {
    REFRAIN_ASSIGN_OR_RETURN(ordered, batch_body(ordered));
  }
  const LineDefaults defaults{options.max_tokens, options.temperature};
  REFRAIN_ASSIGN_OR_RETURN(
      line.request,
      read_request_line(ordered, local.text(), local.config().generation_defaults, defaults));
  line.wants_logprobs = line.request.sampling.logprobs >= 0;
  line.chat = ordered.contains("messages");
  return {};
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
    for (const TokenLogprob& other : token.top) top.push_back({other.token, finite(other.logprob)});
    list.push_back(
        {{"token_id", token.token}, {"logprob", finite(token.logprob)}, {"top", std::move(top)}});
  }
  return list;
}

Json own_answer(const Line& line, const RequestOutput& output, const text::Tokenizer& tokenizer) {
  const std::vector<TokenId>& prompt = line.request.prompt;
  Json ids = Json::array();
  for (const TokenOutput& token : output.tokens) ids.push_back(token.token);
  Json json = {{"prompt_ids", prompt},
               {"output_ids", std::move(ids)},
               {"text", output.text},
               {"finish_reason", to_string(output.finish)}};
  if (line.wants_logprobs) json["logprobs"] = logprobs_of(output);
  if (output.prompt)
    json["prompt_logprobs"] = prompt_logprobs_json(
        prompt, *output.prompt, line.request.sampling.prompt_logprobs, tokenizer);
  if (!line.custom_id.is_null()) json["custom_id"] = line.custom_id;
  return json;
}

// The object that the server would have answered.
Json api_answer(const Line& line, size_t number, const RequestOutput& output,
                const LocalEngine& local) {
  AnswerHead head;
  head.id = fmt::format("{}-{}", line.chat ? "chatcmpl" : "cmpl", number);
  head.model = local.config().served_model_names.front();
  head.created = std::time(nullptr);
  head.chat = line.chat;
  head.logprobs = line.wants_logprobs;
  head.num_prompt_logprobs = line.request.sampling.prompt_logprobs;
  ChoiceText choice;
  choice.text = output.text;
  choice.tokens = output.tokens;
  choice.finish = output.finish;
  choice.stop_reason = output.stop_reason;
  choice.prompt = std::make_shared<const std::vector<TokenId>>(line.request.prompt);
  choice.scores = output.prompt;
  const Usage usage{output.prompt_tokens, output.output_tokens, output.cached_tokens};
  return whole_answer(head, {choice}, usage, *local.text().tokenizer);
}

// A line of OpenAI's batch output: `body` is an answer, or an error with its status.
Json batch_answer(const Line& line, size_t number, int status, Json body) {
  return {{"id", fmt::format("batch_req_{}", number)},
          {"custom_id", line.custom_id},
          {"response",
           {{"status_code", status},
            {"request_id", fmt::format("req_{}", number)},
            {"body", std::move(body)}}},
          {"error", nullptr}};
}

Json error_answer(const Line& line, size_t number) {
  const int status = http_status(line.error->code);
  Json error = {{"error", error_json(status, *line.error)["error"]}};
  if (line.batch) return batch_answer(line, number, status, std::move(error));
  if (!line.custom_id.is_null()) error["custom_id"] = line.custom_id;
  return error;
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

// The line with its request, or with what is wrong in it.
Line read_line(const std::string& text, LocalEngine& local, const GenerateOptions& options) {
  Line line;
  Status read = parse_line(text, local, options, line);
  if (read) read = local.engine().check(line.request);
  if (!read) line.error = read.error();
  return line;
}

// The first line at fault is returned when all are written.
Status generate(const GenerateOptions& options) {
  REFRAIN_ASSIGN_OR_RETURN(const auto texts, input_lines(options));
  REFRAIN_RETURN_IF_ERROR(check_output(options.output));
  REFRAIN_ASSIGN_OR_RETURN(auto local, LocalEngine::create(options.config));
  const std::string file = options.prompts.empty() ? "--prompt" : options.prompts;
  Status first;
  std::vector<Line> lines;
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.push_back(read_line(texts[i], *local, options));
    if (!lines.back().error) {
      requests.push_back(lines.back().request);
    } else {
      Error error = at_line(file, i + 1, *lines.back().error);
      if (!first) log::error("{}", error.message);  // the first is said at the end
      if (first) first = forward_error(std::move(error));
    }
  }
  if (lines.empty()) return fail_field("--prompts", "{} holds no prompts", file);
  std::vector<RequestOutput> outputs;
  if (!requests.empty()) {
    REFRAIN_RETURN_IF_ERROR(local->start());
    REFRAIN_ASSIGN_OR_RETURN(outputs, local->run(std::move(requests)));
  }
  std::string text;
  size_t answered = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (options.prompts.empty()) {
      if (!line.error) text += outputs[answered++].text + "\n";
    } else if (line.error) {
      text += dump(error_answer(line, i + 1)) + "\n";
    } else {
      const RequestOutput& output = outputs[answered++];
      text +=
          dump(line.batch ? batch_answer(line, i + 1, 200, api_answer(line, i + 1, output, *local))
                          : own_answer(line, output, *local->text().tokenizer)) +
          "\n";
    }
  }
  REFRAIN_RETURN_IF_ERROR(write_output(options.output, text));
  const EngineStats stats = local->engine().stats();
  log::debug("{} preemptions; graphs that ran:\n{}", stats.preemptions, cudagraph_text(stats));
  return first;
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  const Status status = generate(options);
  return status ? kExitOk : report(status.error());
}

}  // namespace refrain
