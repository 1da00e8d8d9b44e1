#pragma once
// The one RAII wrapper for C handles: UniqueHandle<Traits> where Traits has `using Type`,
// `static Type invalid()` and `static void close(Type)`. Owned by one scope, movable.

#include <unistd.h>

#include <utility>

namespace refrain {

template <class Traits>
class UniqueHandle {
 public:
  using Type = typename Traits::Type;

  UniqueHandle() = default;
  explicit UniqueHandle(Type handle) : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueHandle() { reset(); }

  Type get() const { return handle_; }
  explicit operator bool() const { return handle_ != Traits::invalid(); }
  Type release() { return std::exchange(handle_, Traits::invalid()); }
  void reset(Type handle = Traits::invalid()) {
    if (handle_ != Traits::invalid()) Traits::close(handle_);
    handle_ = handle;
  }

 private:
  Type handle_ = Traits::invalid();
};

struct FdTraits {
  using Type = int;
  static Type invalid() { return -1; }
  static void close(Type fd) { ::close(fd); }
};
using UniqueFd = UniqueHandle<FdTraits>;

}  // namespace refrain
