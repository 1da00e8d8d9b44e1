// Fuzzes chat templates: parsed, then rendered over one conversation within small limits (R-14).
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/text/chat_template.h"

namespace {

const nlohmann::ordered_json& conversation() {
  static const auto request = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Héllo <b>&</b>"},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]},
                 {"role": "tool", "content": "42"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})");
  return request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto loaded = refrain::text::ChatTemplate::from_source(source);
  if (!loaded) {
    if (loaded.error().message.empty()) std::abort();
    return 0;
  }
  refrain::text::ChatTemplateOptions options;
  options.max_steps = 20'000;
  options.max_output_bytes = size_t{1} << 16;
  options.now = std::chrono::system_clock::time_point(std::chrono::seconds(1'700'000'000));
  const auto text = loaded->render(conversation(), options);
  if (text && text->size() > options.max_output_bytes) std::abort();
  return 0;
}
