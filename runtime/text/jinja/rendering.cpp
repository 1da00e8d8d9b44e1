#include "runtime/text/jinja/rendering.h"

namespace refrain::jinja {

Circles::~Circles() {
  for (const auto& weak : scopes_)
    if (const auto scope = weak.lock()) scope->variables.clear();
  for (const auto& weak : namespaces_)
    if (const auto space = weak.lock()) space->attributes = {};
}

}  // namespace refrain::jinja
