#pragma once
// Where a process finds LoRA adapters: directories that its command line names, and the folders of
// one directory. Nothing that comes in a message or a request is a path. Plain data.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace CLI {
class App;
}

namespace refrain {

struct LoraModule {
  std::string name;
  std::string path;
  bool operator==(const LoraModule&) const = default;
};

struct LoraPaths {
  std::vector<LoraModule> modules;  // --lora-modules
  std::string directory;            // --lora-dir; empty: none

  // The directory of one of --lora-modules; of a folder of --lora-dir.
  Result<std::filesystem::path> find_module(const std::string& name) const;
  Result<std::filesystem::path> find_folder(const std::string& name) const;
  // Either, whose files have the digest.
  Result<std::filesystem::path> find(const std::string& name, const std::string& digest) const;
};

// "name=path" or {"name": …, "path": …} each, as vLLM takes them.
Result<std::vector<LoraModule>> parse_lora_modules(const std::vector<std::string>& values);

// --lora-modules (alias --lora-paths) and --lora-dir, and the command line that says the same.
void add_lora_paths(CLI::App& app, LoraPaths& paths, const std::string& group);
std::vector<std::string> lora_arguments(const LoraPaths& paths);

}  // namespace refrain
