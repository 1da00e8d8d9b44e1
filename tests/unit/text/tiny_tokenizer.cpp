#include "tests/unit/text/tiny_tokenizer.h"

#include <stdexcept>

#include "runtime/text/byte_alphabet.h"

namespace refrain::text {

using nlohmann::json;

json byte_level_json() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocab[bytes_to_chars({&raw, 1})] = byte;
  }
  const json merges = {"h e", "l l", "he ll", "hell o", "Ġ hello"};
  int next = 256;
  for (const char* token : {"he", "ll", "hell", "hello", "Ġhello"}) vocab[token] = next++;
  const auto special = [](int id, const char* content) {
    return json{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {special(261, "<s>"), special(262, "</s>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

json byte_fallback_json() {
  json vocab = {{"<unk>", 0}};
  int next = 1;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = next++;
  for (const char* token : {"▁", "h", "i", "hi", "▁hi"}) vocab[token] = next++;
  const json space = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const json back = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  return {
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, space}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {back,
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"fuse_unk", true},
        {"vocab", vocab},
        {"merges", json::array({json::array({"h", "i"}), json::array({"▁", "hi"})})}}}};
}

Tokenizer load_tokenizer(const json& tokenizer, const json& config) {
  auto loaded = Tokenizer::from_json({tokenizer.dump(), config.is_null() ? "" : config.dump(), ""});
  if (!loaded) throw std::runtime_error(loaded.error().message);
  return std::move(*loaded);
}

std::string load_error(const json& tokenizer, const json& config) {
  const auto loaded =
      Tokenizer::from_json({tokenizer.dump(), config.is_null() ? "" : config.dump(), ""});
  return loaded ? "" : loaded.error().message;
}

}  // namespace refrain::text
