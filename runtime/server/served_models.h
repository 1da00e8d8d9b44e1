#pragma once
// The names that requests may call a model by. Any thread.

#include <string>

#include "runtime/engine/engine.h"

namespace refrain {

// A name of the model or of an adapter; or none. kNotFound otherwise.
Status check_model(const Engine& engine, const std::string& name);

}  // namespace refrain
