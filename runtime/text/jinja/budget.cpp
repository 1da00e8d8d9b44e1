#include "runtime/text/jinja/budget.h"

#include <fmt/format.h>

#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

void Budget::charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps)
    throw TemplateError(fmt::format("the template takes more than {} steps", limits_.steps));
}

void Budget::charge_text(size_t bytes) {
  if (bytes > limits_.output_bytes)
    throw TemplateError(
        fmt::format("the template makes more than {} bytes of text", limits_.output_bytes));
  charge(bytes / 64);
}

Budget::Nesting::Nesting(Budget& budget) : budget_(budget) {
  if (budget_.depth_ >= kMaxDepth) throw TemplateError("the template recurses too deeply");
  ++budget_.depth_;
}

}  // namespace refrain::jinja
