#include "runtime/text/chat_template.h"

#include <map>

#include "runtime/base/json.h"
#include "runtime/text/jinja/template.h"
#include "runtime/text/json_reader.h"

namespace refrain::text {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

struct NamedTemplate {
  jinja::Template compiled;
  bool knows_developer = false;  // the role
};
using Templates = std::map<std::string, NamedTemplate>;

}  // namespace

struct ChatTemplate::Parts {
  Templates templates;                        // "default", perhaps "tool_use" and others
  std::map<std::string, std::string> tokens;  // "bos_token" and so on
};

namespace {

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

Status add_template(const std::string& name, std::string_view source, const std::string& where,
                    Templates& templates) {
  auto compiled = jinja::Template::compile(source, where);
  if (!compiled) return forward_error(compiled.error());
  const bool knows_developer = source.find("developer") != std::string_view::npos;
  templates.insert_or_assign(name, NamedTemplate{std::move(*compiled), knows_developer});
  return {};
}

// "chat_template": a string, or [{"name": …, "template": …}, …].
Status add_from_config(const JsonView& config, Templates& templates) {
  const auto field = config.find("chat_template");
  if (!field) return {};
  if (!field->value().is_array()) {
    REFRAIN_ASSIGN_OR_RETURN(const std::string source, field->string());
    return add_template("default", source, field->path(), templates);
  }
  for (size_t i = 0; i < field->value().size(); ++i) {
    const JsonView item = field->item(i);
    REFRAIN_ASSIGN_OR_RETURN(const std::string name, item.string("name"));
    REFRAIN_ASSIGN_OR_RETURN(const std::string source, item.string("template"));
    REFRAIN_RETURN_IF_ERROR(add_template(name, source, item.path(), templates));
  }
  return {};
}

Status read_tokens(const JsonView& config, std::map<std::string, std::string>& tokens) {
  for (const char* name : kTokenNames) {
    const auto field = config.find(name);
    if (!field || tokens.contains(name)) continue;
    REFRAIN_ASSIGN_OR_RETURN(
        tokens[name], field->value().is_object() ? field->string("content") : field->string());
  }
  return {};
}

// A message's reasoning goes by several names; templates read reasoning_content, some thinking.
void alias_reasoning(ordered_json& message) {
  const ordered_json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto it = message.find(name);
    if (it == message.end() || it->is_null()) continue;
    reasoning = &*it;
    break;
  }
  if (reasoning == nullptr) return;
  const ordered_json value = *reasoning;
  if (!message.contains("thinking")) message["thinking"] = value;
  message["reasoning_content"] = value;
}

// OpenAI's newer name of the role that instructs a model; templates without it pass such messages
// over or refuse them.
void rename_developer(ordered_json& messages) {
  for (auto& message : messages)
    if (message.value("role", ordered_json()) == "developer") message["role"] = "system";
}

Status check_messages(const ordered_json& request) {
  if (!request.is_object() || !request.contains("messages") || !request["messages"].is_array())
    return fail_field("messages", "'messages' must be an array of objects");
  for (const auto& message : request["messages"])
    if (!message.is_object()) return fail_field("messages", "every message must be an object");
  return {};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::load(const fs::path& model_dir) {
  constexpr size_t kMaxBytes = size_t{16} << 20;
  auto parts = std::make_shared<Parts>();
  std::error_code code;
  for (const char* file : {kConfigName, "special_tokens_map.json"}) {
    if (!fs::exists(model_dir / file, code)) continue;
    REFRAIN_ASSIGN_OR_RETURN(const std::string text, read_text_file(model_dir / file, kMaxBytes));
    REFRAIN_ASSIGN_OR_RETURN(const auto config, parse_json(text, file));
    const JsonView view(config, std::string(file) + ":");
    REFRAIN_RETURN_IF_ERROR(read_tokens(view, parts->tokens));
    REFRAIN_RETURN_IF_ERROR(add_from_config(view, parts->templates));
  }
  const fs::path jinja_file = model_dir / "chat_template.jinja";
  if (fs::exists(jinja_file, code)) {
    REFRAIN_ASSIGN_OR_RETURN(const std::string source,
                             read_text_file(jinja_file, jinja::Template::kMaxSourceBytes));
    parts->templates.clear();
    REFRAIN_RETURN_IF_ERROR(
        add_template("default", source, "chat_template.jinja", parts->templates));
  }
  if (!parts->templates.contains("default"))
    return fail(ErrorCode::kNotFound,
                "the model has no chat template: neither chat_template.jinja nor 'chat_template' "
                "in {}",
                kConfigName);
  return ChatTemplate(std::move(parts));
}

Result<ChatTemplate> ChatTemplate::from_source(std::string_view source) {
  auto parts = std::make_shared<Parts>();
  REFRAIN_RETURN_IF_ERROR(add_template("default", source, "chat template", parts->templates));
  return ChatTemplate(std::move(parts));
}

Result<std::string> ChatTemplate::render(const ordered_json& request,
                                         const ChatTemplateOptions& options) const {
  REFRAIN_RETURN_IF_ERROR(check_messages(request));
  ordered_json variables = {{"messages", ordered_json::array()},
                            {"tools", nullptr},
                            {"documents", nullptr},
                            {"add_generation_prompt", false}};
  for (const auto& [name, token] : parts_->tokens) variables[name] = token;
  for (const auto& [name, value] : request.items()) variables[name] = value;
  for (auto& message : variables["messages"]) alias_reasoning(message);
  const bool has_tools = variables["tools"].is_array() && !variables["tools"].empty();
  const char* name = has_tools && parts_->templates.contains("tool_use") ? "tool_use" : "default";
  jinja::RenderOptions render_options{options.max_steps, options.max_output_bytes,
                                      options.now.value_or(std::chrono::system_clock::now())};
  const NamedTemplate& named = parts_->templates.at(name);
  if (!named.knows_developer) rename_developer(variables["messages"]);
  return named.compiled.render(variables, render_options);
}

Result<std::string> ChatTemplate::render(const nlohmann::json& request,
                                         const ChatTemplateOptions& options) const {
  return render(ordered_json(request), options);
}

std::vector<std::string> ChatTemplate::unsupported() const {
  std::vector<std::string> all;
  for (const auto& [name, named] : parts_->templates) {
    const auto& some = named.compiled.unsupported();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace refrain::text
