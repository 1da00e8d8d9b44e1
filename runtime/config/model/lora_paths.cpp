#include "runtime/config/model/lora_paths.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/config/model/model_config.h"

namespace refrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxNameBytes = 256;

// A plain name: nothing that could leave a directory.
bool is_plain(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

Status add_module(const json& value, const std::string& text, std::vector<LoraModule>& modules) {
  const auto field = [&value](const char* name) -> std::string {
    const auto at = value.find(name);
    return at != value.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (!value.is_object() || field("name").empty() || field("path").empty())
    return fail_field("--lora-modules",
                      "--lora-modules: {} needs \"name\" and \"path\", both texts", text);
  for (const auto& [key, unused] : value.items()) {
    if (key != "name" && key != "path" && key != "base_model_name")
      return fail_field("--lora-modules", "--lora-modules: \"{}\" in {} is not known", key, text);
  }
  modules.push_back({field("name"), field("path")});
  return {};
}

Status add_modules(const std::string& text, std::vector<LoraModule>& modules) {
  if (text.starts_with('{')) {
    const json parsed = json::parse(text, nullptr, false);
    if (!parsed.is_discarded()) return add_module(parsed, text, modules);
    return fail_field("--lora-modules", "--lora-modules: {} is not valid JSON", text);
  }
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    return fail_field("--lora-modules", "--lora-modules: {} is not NAME=PATH", text);
  modules.push_back({text.substr(0, equals), text.substr(equals + 1)});
  return {};
}

}  // namespace

Result<fs::path> LoraPaths::find_module(const std::string& name) const {
  const auto module = std::ranges::find(modules, name, &LoraModule::name);
  if (module != modules.end()) return fs::path(module->path);
  return fail(ErrorCode::kNotFound, "no LoRA adapter {} is among --lora-modules", name);
}

Result<fs::path> LoraPaths::find_folder(const std::string& name) const {
  if (directory.empty()) return fail(ErrorCode::kNotFound, "there is no --lora-dir");
  if (!is_plain(name))
    return fail(ErrorCode::kInvalidArgument, "{} is not the name of a folder in --lora-dir", name);
  std::error_code error;
  const fs::path root = fs::canonical(directory, error);
  const fs::path path = error ? fs::path() : fs::canonical(root / name, error);
  if (error || path.parent_path() != root || !fs::is_directory(path, error))
    return fail(ErrorCode::kNotFound, "there is no folder {} in --lora-dir", name);
  return path;
}

Result<fs::path> LoraPaths::find(const std::string& name, const std::string& digest) const {
  std::string why;
  for (const auto& path : {find_module(name), find_folder(name)}) {
    const auto here = path ? adapter_digest(*path) : forward_error(path.error());
    if (here && *here == digest) return *path;
    why += fmt::format(
        "{}{}", why.empty() ? "" : "; ",
        here ? fmt::format("{} has digest {}, the coordinator's {}", path->string(), *here, digest)
             : here.error().message);
  }
  return fail(ErrorCode::kInvalidArgument, "{}", why);
}

Result<std::vector<LoraModule>> parse_lora_modules(const std::vector<std::string>& values) {
  std::vector<LoraModule> modules;
  for (const std::string& value : values) REFRAIN_RETURN_IF_ERROR(add_modules(value, modules));
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto same = [&](const LoraModule& other) { return other.name == modules[i].name; };
    if (std::any_of(modules.begin(), modules.begin() + static_cast<std::ptrdiff_t>(i), same))
      return fail_field("--lora-modules", "--lora-modules: {} is named twice", modules[i].name);
  }
  return modules;
}

void add_lora_paths(CLI::App& app, LoraPaths& paths, const std::string& group) {
  app.add_option_function<std::vector<std::string>>(
         "--lora-modules,--lora-paths",
         [&paths](const std::vector<std::string>& values) {
           auto modules = parse_lora_modules(values);
           if (!modules) throw CLI::ValidationError(modules.error().message);
           paths.modules = std::move(*modules);
         },
         "LoRA adapters served from the start: NAME=PATH of a PEFT directory, or JSON "
         "{\"name\": …, \"path\": …}, several times")
      ->type_name("NAME=PATH ...")
      ->group(group);
  app.add_option("--lora-dir", paths.directory,
                 "Directory whose folders may be loaded over HTTP as LoRA adapters (default: none)")
      ->group(group);
}

std::vector<std::string> lora_arguments(const LoraPaths& paths) {
  std::vector<std::string> arguments;
  if (!paths.modules.empty()) {
    arguments.emplace_back("--lora-modules");
    for (const LoraModule& module : paths.modules)
      arguments.push_back(json{{"name", module.name}, {"path", module.path}}.dump());
  }
  if (!paths.directory.empty()) arguments.insert(arguments.end(), {"--lora-dir", paths.directory});
  return arguments;
}

}  // namespace refrain
