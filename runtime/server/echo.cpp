#include "runtime/server/echo.h"

#include <iterator>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

constexpr int64_t kMostEcho = 64 << 20;  // of all choices

}  // namespace

Result<std::vector<std::string>> echoed_texts(const ApiRequest& request,
                                              const std::vector<std::vector<TokenId>>& prompts,
                                              int64_t max_model_len,
                                              const text::Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  if (!request.echo) return texts;
  int64_t bytes = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto* own = std::get_if<std::string>(&request.prompts[i]);
    if (own != nullptr && !request.truncate_prompt_tokens) {
      texts.push_back(*own);
    } else if (std::ssize(prompts[i]) < max_model_len) {
      texts.push_back(tokenizer.decode(prompts[i], /*skip_special_tokens=*/true));
    } else {
      texts.emplace_back();  // the engine refuses it
    }
    bytes += std::ssize(texts.back()) * request.n;
    if (bytes > kMostEcho)
      return fail_field("echo",
                        "echo repeats the prompts in each of {} choices (n), more than {} bytes in "
                        "all; ask for fewer choices or prompts",
                        request.n, kMostEcho);
  }
  return texts;
}

}  // namespace refrain
