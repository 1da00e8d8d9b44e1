#pragma once
// Private to ipc/protocol: how many fields an aggregate has, so that a field added to a message but
// not to its wire format does not compile.

#include <cstddef>
#include <utility>

namespace refrain::ipc::wire {

struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{((void)I, AnyField{})...}; };
}

template <class T, size_t N = 0>
constexpr size_t field_count() {
  if constexpr (takes<T>(std::make_index_sequence<N + 1>{})) {
    return field_count<T, N + 1>();
  } else {
    return N;
  }
}

}  // namespace refrain::ipc::wire
