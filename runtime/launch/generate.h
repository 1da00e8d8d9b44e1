#pragma once
// `refrain generate`: prompts in, text out, through the same engine and workers, no server. Lines
// of JSON; order kept; all lines run as one continuous batch.

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

struct GenerateOptions {
  EngineConfig config;
  std::string prompts;             // file, "-": standard input; empty: `texts`
  std::string output = "-";        // file, "-": standard output
  std::vector<std::string> texts;  // --prompt TEXT: plain text out instead of JSON
};

// Returns the exit code. Nothing is written unless every line succeeded.
int run_generate(GenerateOptions options);

}  // namespace refrain
