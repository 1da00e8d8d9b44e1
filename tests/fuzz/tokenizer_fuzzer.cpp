// Fuzzes tokenizer.json; a NUL byte starts tokenizer_config.json. What loads must encode and
// decode a small text without fault.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t cut = text.find('\0');
  refrain::text::TokenizerFiles files;
  files.tokenizer = text.substr(0, cut);
  if (cut != std::string::npos) files.tokenizer_config = text.substr(cut + 1);
  const auto tokenizer = refrain::text::Tokenizer::from_json(files);
  if (!tokenizer) {
    if (tokenizer.error().message.empty()) std::abort();
    return 0;
  }
  for (const char* sample : {"", "Hello world 123!\n", "  \xc3\xa9\xe2\x82\xac <s>\xff  it's"}) {
    const auto ids = tokenizer->encode(sample, true);
    if (!ids) continue;
    for (const auto id : *ids) (void)tokenizer->token_to_string(id);
    (void)tokenizer->decode(*ids, true);
    (void)tokenizer->decode(*ids, false);
  }
  return 0;
}
