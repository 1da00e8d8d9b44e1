#include "runtime/server/pooling_request.h"

#include <algorithm>
#include <limits>
#include <set>

namespace refrain {
namespace {

using Kind = PoolingRequest::Kind;

constexpr size_t kMostPrompts = 2048;  // of a request, as in OpenAI's API

const std::set<std::string> kAll = {
    "model",    "user",       "truncate_prompt_tokens", "timeout",         "max_queue_wait",
    "priority", "cache_salt", "add_special_tokens",     "truncation_side", "padding",
    "messages"};
const std::set<std::string> kOfVectors = {
    "input",          "encoding_format", "dimensions", "normalize",
    "use_activation", "embed_dtype",     "endianness", "task"};
// With `messages` in place of `input`; as vLLM's, nothing opens an answer unless asked for.
constexpr const char* kOfChats[] = {"messages", "add_generation_prompt", "continue_final_message",
                                    "chat_template", "chat_template_kwargs"};
const std::set<std::string> kOfScores = {"text_1", "text_2", "queries", "documents",
                                         "encoding_format"};
const std::set<std::string> kOfRanks = {"query", "documents", "top_n"};

const std::set<std::string>& own_fields(Kind kind) {
  if (kind == Kind::kScore) return kOfScores;
  return kind == Kind::kRerank ? kOfRanks : kOfVectors;
}

std::vector<std::string> ignored_names(const Json& body, Kind kind, bool chat) {
  std::vector<std::string> names;
  for (const auto& [name, value] : body.items()) {
    const bool known = kAll.contains(name) || own_fields(kind).contains(name) ||
                       (chat && std::ranges::find(kOfChats, name) != std::end(kOfChats));
    if (!value.is_null() && !known && names.size() < 8) names.push_back(name.substr(0, 64));
  }
  return names;
}

void take_one_of(JsonFields& fields, const char* name, std::initializer_list<const char*> values) {
  const auto given = fields.string(name);
  if (!given || std::ranges::find(values, *given) != values.end()) return;
  std::string list;
  for (const char* value : values) list += (list.empty() ? "" : " or ") + std::string(value);
  fields.fail_on(name, "must be " + list);
}

void read_common_fields(JsonFields& fields, ApiRequest& request) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  request.model = fields.string("model").value_or("");
  fields.string("user");
  request.priority = static_cast<int32_t>(fields.integer("priority", -kMost, kMost).value_or(0));
  request.cache_salt = fields.string("cache_salt").value_or("");
  request.max_queue_wait = read_duration(fields, "max_queue_wait");
  request.timeout = read_duration(fields, "timeout");
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  request.truncate_prompt_tokens = fields.integer("truncate_prompt_tokens", -1, kMost);
  if (request.truncate_prompt_tokens == 0)
    fields.fail_on("truncate_prompt_tokens", "must be -1 or positive");
  take_one_of(fields, "truncation_side", {"left"});
  take_one_of(fields, "padding", {"do_not_pad"});
}

// vLLM's sentences.
Status read_dimensions(JsonFields& fields, const EngineConfig& config, const ModelConfig& model,
                       PoolingRequest& pooling) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto given = fields.integer("dimensions", -kMost, kMost);
  REFRAIN_RETURN_IF_ERROR(fields.status());
  pooling.dimensions = static_cast<size_t>(config.pooling_dimensions);
  if (!given) return {};
  const std::string& name = config.served_model_names.front();
  const auto& known = model.matryoshka_dimensions;
  if (!model.is_matryoshka)
    return fail_field("dimensions",
                      "Model \"{}\" does not support matryoshka representation, changing output "
                      "dimensions will lead to poor results (config.json: is_matryoshka)",
                      name);
  if (!known.empty() && std::ranges::find(known, *given) == known.end())
    return fail_field("dimensions",
                      "Model \"{}\" only supports {} matryoshka dimensions, use other output "
                      "dimensions will lead to poor results (dimensions: {})",
                      name, Json(known).dump(), *given);
  if (*given < 1) return fail_field("dimensions", "Dimensions must be greater than 0");
  if (*given > model.hidden_size)
    return fail_field("dimensions", "dimensions is {}; the model's vectors have {}", *given,
                      model.hidden_size);
  pooling.dimensions = static_cast<size_t>(*given);
  return {};
}

Status read_vector_fields(JsonFields& fields, TokenLists ids, const EngineConfig& config,
                          const ModelConfig& model, ApiRequest& request) {
  PoolingRequest& pooling = *request.pooling;
  take_one_of(fields, "encoding_format", {"float", "base64"});
  pooling.base64 = fields.string("encoding_format") == "base64";
  take_one_of(fields, "embed_dtype", {"float32"});
  take_one_of(fields, "endianness", {"native", "little"});
  if (pooling.kind == Kind::kPooling) take_one_of(fields, "task", {"embed"});
  pooling.normalize = pooling.kind == Kind::kEmbeddings && config.pooling_normalize;
  for (const char* name : {"normalize", "use_activation"})
    if (const auto given = fields.boolean(name)) pooling.normalize = *given;
  REFRAIN_RETURN_IF_ERROR(read_dimensions(fields, config, model, pooling));
  const Json* input = fields.get("input");
  if (request.chat) {
    if (input != nullptr) return fail_field("messages", "messages and input exclude each other");
    if (fields.boolean("add_special_tokens").value_or(false))
      return fail_field("add_special_tokens",
                        "add_special_tokens does not go with messages: the template adds them");
    return fields.status();
  }
  if (input == nullptr) return fail_field("input", "input is missing");
  return read_prompts(*input, "input", std::move(ids), request.prompts);
}

// One text or a list of them.
Result<std::vector<std::string>> read_texts(JsonFields& fields, const char* name) {
  const Json* value = fields.get(name);
  if (value == nullptr) return fail_field(name, "{} is missing", name);
  std::vector<std::string> texts;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    const bool object = item.is_object() && item.contains("text") && item["text"].is_string();
    if (!item.is_string() && !object)
      return fail_field(name, "{} must be a string or a list of strings", name);
    texts.push_back(object ? item["text"].get<std::string>() : item.get<std::string>());
  }
  if (texts.empty()) return fail_field(name, "{} must not be empty", name);
  return texts;
}

Status read_score_fields(JsonFields& fields, ApiRequest& request) {
  PoolingRequest& pooling = *request.pooling;
  const bool ranks = pooling.kind == Kind::kRerank;
  const char* first = ranks ? "query" : fields.has("queries") ? "queries" : "text_1";
  const char* second = ranks || fields.has("documents") ? "documents" : "text_2";
  REFRAIN_ASSIGN_OR_RETURN(auto queries, read_texts(fields, first));
  REFRAIN_ASSIGN_OR_RETURN(auto others, read_texts(fields, second));
  if (ranks && queries.size() != 1) return fail_field(first, "{} must be one string", first);
  if (queries.size() != 1 && queries.size() != others.size())
    return fail_field(second, "{}: Input lengths must be either 1:1, 1:N or N:N", second);
  if (ranks) {
    const auto most = static_cast<int64_t>(kMostPrompts);
    pooling.top_n = static_cast<size_t>(fields.integer("top_n", 0, most).value_or(0));
    pooling.documents = others;
  }
  pooling.num_queries = queries.size();
  for (auto* texts : {&queries, &others})
    for (std::string& text : *texts) request.prompts.emplace_back(std::move(text));
  return fields.status();
}

}  // namespace

Result<ApiRequest> parse_pooling_request(const Json& body, TokenLists ids, Kind kind,
                                         const EngineConfig& config, const ModelConfig& model) {
  if (!body.is_object()) return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  ApiRequest request;
  request.pooling.emplace();
  request.pooling->kind = kind;
  request.max_tokens = 1;
  JsonFields fields(body);
  read_common_fields(fields, request);
  const bool vectors = kind == Kind::kEmbeddings || kind == Kind::kPooling;
  if (fields.has("messages") && !vectors)
    return fail_field("messages", "messages is not supported; give texts");
  request.chat = fields.has("messages");
  REFRAIN_RETURN_IF_ERROR(vectors
                              ? read_vector_fields(fields, std::move(ids), config, model, request)
                              : read_score_fields(fields, request));
  REFRAIN_RETURN_IF_ERROR(fields.status());
  if (request.prompts.size() > kMostPrompts)
    return fail_field(request.pooling->documents_field(), "the request holds more than {} texts",
                      kMostPrompts);
  request.ignored = ignored_names(body, kind, request.chat);
  return request;
}

Result<ChatInput> read_pooled_chat(const OrderedJson& body, bool trust_chat_template) {
  OrderedJson chat = {{"add_generation_prompt", false}};
  for (const char* name : kOfChats)
    if (const auto at = body.find(name); at != body.end() && !at->is_null()) chat[name] = *at;
  return read_chat_input(chat, trust_chat_template);
}

}  // namespace refrain
