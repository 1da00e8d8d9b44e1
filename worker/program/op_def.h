#pragma once
// How an op is defined. Each op has, in worker/program/ops, a plain struct of value ids and numbers
// and a Definition of it: name, operands with their access, attributes, shape rule, the launch of
// its kernel. Validation, printing, renumbering, what is read and written, addresses and profiler
// names derive from that alone.

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>

#include "kernels/core/kernel_table.h"
#include "worker/program/shapes.h"

namespace refrain::worker {

enum class Access : uint8_t {
  kRead,
  kWrite,    // defines the value
  kInPlace,  // defines it in the storage of another operand, whose value is gone afterwards
  kState,    // reads and changes a value of kind kState
  kScratch,  // memory that this op alone uses
};

struct Operand {
  const char* name;
  Access access;
  size_t offset;           // of the ValueId in the op
  bool optional = false;   // may be kNoValue
  bool early = false;      // read before the op's predecessor has ended (P-7)
  size_t in_place_of = 0;  // kInPlace: offset of the ValueId whose storage it takes over
  bool of_rank = false;    // there on some ranks of a group only

  bool reads() const { return access == Access::kRead || access == Access::kState; }
  bool writes() const { return access != Access::kRead && access != Access::kScratch; }
};

constexpr Operand read(const char* name, size_t at) { return {name, Access::kRead, at}; }
constexpr Operand optional_read(const char* name, size_t at) {
  return {name, Access::kRead, at, true};
}
constexpr Operand early_read(const char* name, size_t at) {
  return {name, Access::kRead, at, false, true};
}
constexpr Operand optional_early_read(const char* name, size_t at) {
  return {name, Access::kRead, at, true, true};
}
constexpr Operand write(const char* name, size_t at) { return {name, Access::kWrite, at}; }
constexpr Operand optional_write(const char* name, size_t at) {
  return {name, Access::kWrite, at, true};
}
constexpr Operand in_place(const char* name, size_t at, size_t of) {
  return {name, Access::kInPlace, at, false, false, of};
}
// On some ranks only: what is added to a sum over ranks once.
constexpr Operand of_rank(Operand operand) {
  operand.of_rank = true;
  return operand;
}
constexpr Operand state(const char* name, size_t at) { return {name, Access::kState, at}; }
constexpr Operand optional_state(const char* name, size_t at) {
  return {name, Access::kState, at, true};
}
// Of a ValueId in an array of them.
constexpr size_t place_in(size_t array, size_t index) { return array + index * sizeof(ValueId); }
constexpr Operand scratch(const char* name, size_t at) { return {name, Access::kScratch, at}; }

// A number of the op that is no value.
struct Attribute {
  std::string (*text)(const void* op);  // "eps=1e-05"; empty: not shown
  void (*forget)(void* op) = nullptr;   // of an ordinal: takes what tells equal launches apart
  bool of_rank = false;                 // follows from the rank's share of heads or vocabulary
};
constexpr Attribute of_rank(Attribute attribute) {
  attribute.of_rank = true;
  return attribute;
}

struct OpDef {
  const char* name;  // as printed, configured in splitting ops, and shown by profilers
  std::span<const Operand> operands;
  std::span<const Attribute> attributes;
  std::string (*shape)(const Shapes& shapes, const void* op);  // what disagrees; empty: nothing
  bool (*has_kernel)(const kernels::KernelTable& table, const void* op);
  // Cut here for PIECEWISE (CG-19): its launch does not follow from the key alone, or that of the
  // op behind it does not.
  bool splits;
  bool collective;  // the communicator's, or begins with it
  bool row_wise;    // row i of its results depends on row i of its activations alone
  // P-7: its successor starts only when all before it have ended; when it has ended itself.
  bool ends_all, ends_itself;
};

template <class O>
struct Definition;  // specialised beside each op

template <class O>
constexpr OpDef make_def() {
  using D = Definition<O>;
  OpDef def{};
  def.name = D::name;
  def.operands = D::operands;
  if constexpr (requires { D::attributes; }) def.attributes = D::attributes;
  def.shape = [](const Shapes& shapes, const void* op) {
    return D::shape(shapes, *static_cast<const O*>(op));
  };
  def.has_kernel = [](const kernels::KernelTable& table, const void* op) {
    return D::has_kernel(table, *static_cast<const O*>(op));
  };
  def.splits = requires { D::splits; };
  def.collective = requires { D::collective; };
  def.row_wise = requires { D::row_wise; };
  def.ends_all = requires { D::ends_all; };
  def.ends_itself = requires { D::ends_itself; };
  return def;
}

namespace attribute_detail {
template <class T>
struct Member;
template <class O, class V>
struct Member<V O::*> {
  using Op = O;
  using Value = V;
};
template <auto field>
using OpOf = typename Member<decltype(field)>::Op;
template <auto field>
using ValueOf = typename Member<decltype(field)>::Value;
}  // namespace attribute_detail

// An attribute's name as a template argument.
template <size_t N>
struct Label {
  char text[N]{};
  constexpr Label(const char (&name)[N]) {  // NOLINT(google-explicit-constructor): a literal
    for (size_t i = 0; i < N; ++i) text[i] = name[i];
  }
};

// "label=value".
template <Label label, auto field>
constexpr Attribute shown() {
  using O = attribute_detail::OpOf<field>;
  return {[](const void* op) {
    return fmt::format("{}={}", label.text, static_cast<const O*>(op)->*field);
  }};
}
// The same where the value is not `absent`.
template <Label label, auto field, auto absent>
constexpr Attribute shown_unless() {
  using O = attribute_detail::OpOf<field>;
  return {[](const void* op) {
    const auto value = static_cast<const O*>(op)->*field;
    return value == absent ? std::string() : fmt::format("{}={}", label.text, value);
  }};
}
// The label alone, where the field is set.
template <Label label, auto field>
constexpr Attribute flag() {
  using O = attribute_detail::OpOf<field>;
  return {[](const void* op) {
    return std::string(static_cast<const O*>(op)->*field ? label.text : "");
  }};
}
// "label=value" of a number that only tells equal launches apart (a layer), shown unless negative.
template <Label label, auto field>
constexpr Attribute ordinal() {
  using O = attribute_detail::OpOf<field>;
  return {[](const void* op) {
            const auto value = static_cast<const O*>(op)->*field;
            return value < 0 ? std::string() : fmt::format("{}={}", label.text, value);
          },
          [](void* op) {
            auto& value = static_cast<O*>(op)->*field;
            if (value > 0) value = 0;
          }};
}
// "label=value" where the operand `operand` is there.
template <Label label, auto field, auto operand>
constexpr Attribute shown_with() {
  using O = attribute_detail::OpOf<field>;
  return {[](const void* op) {
    const O& self = *static_cast<const O*>(op);
    if (self.*operand == kNoValue) return std::string();
    return fmt::format("{}={}", label.text, self.*field);
  }};
}
// Any other form: `text` of the op.
template <class O, std::string (*text)(const O&)>
constexpr Attribute shown_as() {
  return {[](const void* op) { return text(*static_cast<const O*>(op)); }};
}

}  // namespace refrain::worker
