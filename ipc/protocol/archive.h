#pragma once
// Private to ipc/protocol and the codec of runtime/front: the two cereal archives of the wire.
// Little-endian fixed widths; every container goes through a wrapper that names its cap, so that a
// count is checked against the cap and the bytes left before anything is allocated. The first
// error sticks: later reads yield zeros and allocate nothing.

#include <bit>
#include <cereal/cereal.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "ipc/protocol/utf8.h"
#include "runtime/base/check.h"

namespace refrain::ipc::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

template <class T>
concept Scalar =
    std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, long double>;

class Writer : public cereal::OutputArchive<Writer> {
 public:
  explicit Writer(std::vector<std::byte>& out) : cereal::OutputArchive<Writer>(this), out_(out) {}

  void append(const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), from, from + bytes);
  }
  void append_count(size_t count, uint32_t cap, const char* field) {
    REFRAIN_CHECK(count <= cap, "{} has {} entries; a frame holds at most {}", field, count, cap);
    const auto narrow = static_cast<uint32_t>(count);
    append(&narrow, sizeof narrow);
  }

 private:
  std::vector<std::byte>& out_;
};

class Reader : public cereal::InputArchive<Reader> {
 public:
  explicit Reader(std::span<const std::byte> in) : cereal::InputArchive<Reader>(this), in_(in) {}

  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }
  size_t left() const { return in_.size(); }

  template <class... Args>
  void reject(fmt::format_string<Args...> format, Args&&... args) {
    if (ok()) error_ = fmt::format(format, std::forward<Args>(args)...);
    in_ = {};
  }
  void read(void* to, size_t bytes) {
    if (bytes > in_.size()) {
      reject("the payload ends in the middle of a field");
      std::memset(to, 0, bytes);
      return;
    }
    if (bytes > 0) std::memcpy(to, in_.data(), bytes);
    in_ = in_.subspan(bytes);
  }
  // How many elements follow; 0 after an error. Checked before the caller allocates for them.
  size_t read_count(uint32_t cap, size_t least_bytes_each, const char* field) {
    uint32_t count = 0;
    read(&count, sizeof count);
    if (count > cap) {
      reject("{} claims {} entries; at most {} are allowed", field, count, cap);
    } else if (uint64_t{count} * least_bytes_each > in_.size()) {
      reject("{} claims {} entries; {} bytes are left", field, count, in_.size());
    }
    return ok() ? count : 0;
  }

 private:
  std::span<const std::byte> in_;
  std::string error_;
};

// ---- scalars

template <Scalar T>
void save(Writer& out, const T& value) {
  out.append(&value, sizeof value);
}
template <Scalar T>
void load(Reader& in, T& value) {
  in.read(&value, sizeof value);
}

inline void save(Writer& out, const bool& value) {
  const uint8_t byte = value ? 1 : 0;
  out.append(&byte, 1);
}
inline void load(Reader& in, bool& value) {
  uint8_t byte = 0;
  in.read(&byte, 1);
  if (byte > 1) in.reject("a flag is {}; 0 or 1 is allowed", byte);
  value = byte == 1;
}

// cereal would take a bare enum without a check; these make it ambiguous, so it does not compile.
template <class E>
requires std::is_enum_v<E>
void save(Writer& out, const E& value);
template <class E>
requires std::is_enum_v<E>
void load(Reader& in, E& value);

// ---- wrappers: what a message's list of fields may hold besides scalars

template <class E>
struct Choice {  // an enum whose values are 0 … last
  const char* field;
  E& value;
  E last;
};
template <class T>
struct List {  // scalars, copied in bulk
  const char* field;
  std::vector<T>& values;
  uint32_t cap;
};
template <class T>
struct Items {  // structs
  const char* field;
  std::vector<T>& values;
  uint32_t cap;
  size_t least_bytes;
};
struct Name {  // a short identifier, sent as it is
  const char* field;
  std::string& value;
};
struct Text {  // for people: ill-formed bytes are replaced and what is too long is cut
  const char* field;
  std::string& value;
  uint32_t cap;
};
struct Texts {
  const char* field;
  std::vector<std::string>& values;
  uint32_t cap;
  uint32_t each;
};

template <class E>
void save(Writer& out, const Choice<E>& choice) {
  REFRAIN_CHECK(choice.value <= choice.last, "{} is {}, not a value of its enum", choice.field,
                static_cast<int>(choice.value));
  save(out, static_cast<std::underlying_type_t<E>>(choice.value));
}
template <class E>
void load(Reader& in, Choice<E>& choice) {
  std::underlying_type_t<E> raw{};
  load(in, raw);
  if (raw > static_cast<std::underlying_type_t<E>>(choice.last)) {
    in.reject("{} is {}, not a value of its enum", choice.field, raw);
    raw = {};
  }
  choice.value = static_cast<E>(raw);
}

template <Scalar T>
void save(Writer& out, const List<T>& list) {
  out.append_count(list.values.size(), list.cap, list.field);
  out.append(list.values.data(), list.values.size() * sizeof(T));
}
template <Scalar T>
void load(Reader& in, List<T>& list) {
  list.values.resize(in.read_count(list.cap, sizeof(T), list.field));
  in.read(list.values.data(), list.values.size() * sizeof(T));
}

template <class T>
void save(Writer& out, const Items<T>& items) {
  out.append_count(items.values.size(), items.cap, items.field);
  for (T& item : items.values) out(item);
}
template <class T>
void load(Reader& in, Items<T>& items) {
  items.values.resize(in.read_count(items.cap, items.least_bytes, items.field));
  for (T& item : items.values) {
    if (!in.ok()) return;
    in(item);
  }
}

inline void save_string(Writer& out, const std::string& value, uint32_t cap, const char* field) {
  out.append_count(value.size(), cap, field);
  out.append(value.data(), value.size());
}
inline void load_string(Reader& in, std::string& value, uint32_t cap, const char* field) {
  value.resize(in.read_count(cap, 1, field));
  in.read(value.data(), value.size());
  if (in.ok() && !is_valid_utf8(value)) in.reject("{} is not valid UTF-8", field);
}

void save(Writer& out, const Name& name);
void load(Reader& in, Name& name);
void save(Writer& out, const Text& text);
void load(Reader& in, Text& text);
void save(Writer& out, const Texts& texts);
void load(Reader& in, Texts& texts);

}  // namespace refrain::ipc::wire
