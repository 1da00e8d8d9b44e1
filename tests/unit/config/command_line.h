#pragma once
// Parsing words as `refrain serve` would, for tests.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "runtime/config/options.h"

namespace refrain {

struct Parsed {
  EngineConfig config;
  Result<ParseOutcome> outcome;
  std::string error() const { return outcome ? "" : outcome.error().message; }
};

inline Parsed parse_words(std::vector<std::string> words, OptionGroups groups = {}) {
  Parsed parsed{{}, ParseOutcome{}};
  CLI::App app("test", "test");
  add_engine_options(app, parsed.config, groups);
  parsed.outcome = parse_command_line(app, std::move(words));
  return parsed;
}

}  // namespace refrain
