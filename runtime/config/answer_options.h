#pragma once
// Options of how requests are completed and answers read. Used once, by add_engine_options.

#include "runtime/config/engine_config.h"

namespace CLI {
class App;
}

namespace refrain {

// `server`: those of answers too, which only the API has.
void add_answer_options(CLI::App& app, EngineConfig& config, bool server);

}  // namespace refrain
