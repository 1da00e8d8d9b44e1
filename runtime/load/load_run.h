#pragma once
// `refrain bench serve --base-url`: sends a load to a server and says what came of it.

#include "runtime/load/load_options.h"

namespace refrain {

// Prints the table (or JSON) and writes the files that were asked for. Fails after that when a
// request failed, or when a Refrain server was disturbed meanwhile (server_counters.h).
Status run_load(LoadOptions options);

}  // namespace refrain
