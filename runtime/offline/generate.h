#pragma once
// `refrain generate`: prompts in, text out, through the same engine and workers, no server. Lines
// of JSON; order kept; all lines run as one continuous batch.

#include <optional>
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
  int32_t max_tokens = 16;         // of lines that do not say it, as the next
  std::optional<double> temperature;
};

// Returns the exit code. A line at fault has its error in the output and makes the exit code that
// of bad input; the others are answered. Nothing is written when the run itself failed.
int run_generate(const GenerateOptions& options);

}  // namespace refrain
