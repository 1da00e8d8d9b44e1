#pragma once
// The serving options as command-line options (vLLM's names), shared by refrain serve, generate and
// bench and by coordinator. A configuration file's keys are the same names. Used once, in main.

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"

namespace CLI {
class App;
}

namespace refrain {

// Which groups of options a program takes.
struct OptionGroups {
  bool server = true;  // --host, --port, --api-key, …
  bool positional_model = true;
};

// Declares the options on `app`; parsing fills `config`, which must outlive the app.
void add_engine_options(CLI::App& app, EngineConfig& config, const OptionGroups& groups);

// Parses argv[1..]. `--config FILE` is replaced in place by the file's options first, so that the
// command line wins. Errors name the option (and near ones when it is unknown). --help,
// --help-page (docs/options.md) and --version print and give an exit code of 0.
struct ParseOutcome {
  bool exit_now = false;  // help or version was printed
};
Result<ParseOutcome> parse_command_line(CLI::App& app, std::vector<std::string> arguments);

// Reads a configuration file into command-line arguments: {"max-num-seqs": 8} -> --max-num-seqs 8.
Result<std::vector<std::string>> config_file_arguments(const std::string& path);
// The same of a file's text; errors name `path`.
Result<std::vector<std::string>> config_arguments(const std::string& text, const std::string& path);

// Checks ranges and what depends on the model; fills defaults that depend on it (max_model_len,
// dtype auto, served name) or on the device (max_num_seqs). Errors name the option.
Status finish_engine_config(EngineConfig& config, const ModelConfig& model);
// --max-num-seqs as given, else by the device: where nobody names one, by whether NVIDIA's driver
// is there.
int32_t max_num_seqs(const EngineConfig& config);
// The part of it that needs no model: 0 threads become this machine's cores shared by the ranks.
void finish_host_threads(EngineConfig& config);

// The edit-distance-nearest of `candidates` to `name`, or empty when none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace refrain
