#pragma once
// A compiled template of the Jinja subset that chat templates use. Immutable after compile; render
// may be called from any thread at any time.

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::jinja {

struct RenderOptions {
  uint64_t max_steps = 5'000'000;
  size_t max_output_bytes = size_t{16} << 20;
  std::chrono::system_clock::time_point now;  // what strftime_now() tells
};

class Template {
 public:
  static constexpr size_t kMaxSourceBytes = size_t{1} << 20;

  // `name` is how errors call it ("chat_template.jinja"). Syntax that is not supported is an error
  // naming line and construct.
  static Result<Template> compile(std::string_view source, const std::string& name);

  // variables: an object, whose order of keys counts. The error says what the template did wrong,
  // or what it refused (raise_exception).
  Result<std::string> render(const nlohmann::ordered_json& variables,
                             const RenderOptions& options) const;

  // Filters and tests the template names and this library does not have ("line 3: filter 'x'").
  // Reaching one while rendering is an error.
  const std::vector<std::string>& unsupported() const;

 private:
  struct Tree;
  explicit Template(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}
  std::shared_ptr<const Tree> tree_;
};

}  // namespace refrain::jinja
