#include "ipc/protocol/archive.h"

#include "ipc/protocol/limits.h"

namespace refrain::ipc::wire {

void save(Writer& out, const Name& name) {
  REFRAIN_CHECK(is_valid_utf8(name.value), "{} is not valid UTF-8", name.field);
  save_string(out, name.value, kMaxNameBytes, name.field);
}

void load(Reader& in, Name& name) { load_string(in, name.value, kMaxNameBytes, name.field); }

void save(Writer& out, const Text& text) {
  save_string(out, clean_text(text.value, text.cap), text.cap, text.field);
}

void load(Reader& in, Text& text) { load_string(in, text.value, text.cap, text.field); }

void save(Writer& out, const Texts& texts) {
  out.append_count(texts.values.size(), texts.cap, texts.field);
  for (std::string& value : texts.values) save(out, Text{texts.field, value, texts.each});
}

void load(Reader& in, Texts& texts) {
  texts.values.resize(in.read_count(texts.cap, sizeof(uint32_t), texts.field));
  for (std::string& value : texts.values) load_string(in, value, texts.each, texts.field);
}

}  // namespace refrain::ipc::wire
