#pragma once
// A model's own chat template: conversation in, prompt text out. Immutable after load; render may
// be called from any thread at any time.

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::text {

struct ChatTemplateOptions {
  uint64_t max_steps = 5'000'000;
  size_t max_output_bytes = size_t{16} << 20;
  // What strftime_now() tells; the present time if not given.
  std::optional<std::chrono::system_clock::time_point> now;
};

class ChatTemplate {
 public:
  // chat_template.jinja of a model's directory, else "chat_template" of its tokenizer_config.json.
  // kNotFound if the model has neither.
  static Result<ChatTemplate> load(const std::filesystem::path& model_dir);
  // A template's text, with no role tokens but those given to render().
  static Result<ChatTemplate> from_source(std::string_view source);

  // `request`: an object with "messages" (an array of objects) and, if wanted, "tools",
  // "documents", "add_generation_prompt" (false if absent) and whatever else the template takes;
  // bos_token and the like come from the model's files unless given. Keys reach the prompt in
  // their order, so requests should be read into an ordered_json. Errors are the caller's fault
  // (kInvalidArgument): a template refuses what its model was not trained for.
  Result<std::string> render(const nlohmann::ordered_json& request,
                             const ChatTemplateOptions& options = {}) const;
  // The same with keys in alphabetical order.
  Result<std::string> render(const nlohmann::json& request,
                             const ChatTemplateOptions& options = {}) const;

  // What the template names and this interpreter does not have; reaching it is an error.
  std::vector<std::string> unsupported() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

}  // namespace refrain::text
