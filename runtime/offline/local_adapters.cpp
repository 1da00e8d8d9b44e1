#include "runtime/offline/local_adapters.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>

#include "runtime/config/model/model_config.h"
#include "runtime/engine/engine.h"

namespace refrain {
namespace {

namespace fs = std::filesystem;

bool is_same_folder(const std::string& one, const std::string& other) {
  std::error_code error;
  return one == other || fs::equivalent(one, other, error);
}

// A folder with links to the files of the adapter that workers read.
Status link_files(const fs::path& from, const fs::path& folder) {
  std::error_code error;
  if (fs::create_directory(folder, error)) {
    for (fs::directory_iterator at(from, error), end; !error && at != end; at.increment(error)) {
      const fs::path name = at->path().filename();
      if (name.extension() != ".json" && name.extension() != ".safetensors") continue;
      fs::create_symlink(at->path(), folder / name, error);
      if (error) break;
    }
  }
  if (!error) return {};
  return fail(ErrorCode::kInternal, "{}: {}", folder.string(), error.message());
}

}  // namespace

// What waits, and the engine's answer, which may come when nobody waits any more.
struct LocalAdapters::Pending {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::optional<Status> status;
};

AdapterDone LocalAdapters::answer_to(std::shared_ptr<Pending> pending) {
  return [pending = std::move(pending)](Status status) {
    const std::lock_guard lock(pending->mutex);
    pending->status = std::move(status);
    pending->changed.notify_all();
  };
}

Result<std::unique_ptr<LocalAdapters>> LocalAdapters::create(EngineConfig& config) {
  auto adapters = std::unique_ptr<LocalAdapters>(new LocalAdapters());
  adapters->enabled_ = config.enable_lora;
  adapters->model_names_ = config.served_model_names;
  if (config.enable_lora && config.lora.directory.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(RunDirectory own, RunDirectory::create());
    config.lora.directory = adapters->own_.emplace(std::move(own)).path();
  }
  adapters->paths_ = config.lora;
  return adapters;
}

Result<bool> LocalAdapters::load(Engine& engine, const std::string& name, const std::string& path,
                                 Duration timeout) {
  REFRAIN_ASSIGN_OR_RETURN(const auto loading, begin(engine, name, path));
  if (!loading) return true;
  {
    std::unique_lock lock(loading->mutex);
    if (!loading->changed.wait_for(lock, timeout, [&] { return loading->status.has_value(); }))
      return false;
    if (*loading->status) return true;
  }
  forget(name, loading);
  const Error& error = loading->status->error();
  if (error.code == ErrorCode::kUnavailable) {  // workers that start again; who waits asks again
    std::unique_lock lock(loading->mutex);
    loading->changed.wait_for(lock, timeout, [] { return false; });
    return false;
  }
  return forward_error(error);
}

Result<bool> LocalAdapters::unload(Engine& engine, const std::string& name, Duration timeout) {
  std::shared_ptr<Pending> unloading;
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(name);
    if (at == entries_.end())
      return fail_field("lora_name", "there is no LoRA adapter '{}' that was loaded by its path",
                        name);
    if (!at->second.unloading) {
      at->second.unloading = std::make_shared<Pending>();
      engine.unload_adapter(name, answer_to(at->second.unloading));
    }
    unloading = at->second.unloading;
  }
  {
    std::unique_lock lock(unloading->mutex);
    if (!unloading->changed.wait_for(lock, timeout, [&] { return unloading->status.has_value(); }))
      return false;
  }
  forget(name, unloading);
  if (!*unloading->status) return forward_error(unloading->status->error());
  return true;
}

// Unless another has come by that name.
void LocalAdapters::forget(const std::string& name, const std::shared_ptr<Pending>& ended) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at == entries_.end() || (at->second.loading != ended && at->second.unloading != ended))
    return;
  std::error_code ignored;  // it goes with the directory at the latest
  if (own_) fs::remove_all(fs::path(paths_.directory) / at->second.folder, ignored);
  entries_.erase(at);
}

// Nothing: it is served.
Result<std::shared_ptr<LocalAdapters::Pending>> LocalAdapters::begin(Engine& engine,
                                                                     const std::string& name,
                                                                     const std::string& path) {
  if (!enabled_)
    return fail_field("--enable-lora", "a LoRA adapter needs an engine with --enable-lora");
  const std::lock_guard lock(mutex_);
  const auto module = std::ranges::find(paths_.modules, name, &LoraModule::name);
  const auto at = entries_.find(name);
  const bool known = module != paths_.modules.end() || at != entries_.end();
  if (known) {
    const std::string& is = at != entries_.end() ? at->second.path : module->path;
    if (!is_same_folder(is, path))
      return fail_field("lora_path", "the LoRA adapter '{}' is {} and not {}", name, is, path);
    if (at == entries_.end()) return nullptr;
    const bool waits = [&] {
      const std::lock_guard of_pending(at->second.loading->mutex);
      return !at->second.loading->status;
    }();
    if (waits) return at->second.loading;
    if (engine.find_adapter(name)) return nullptr;
    if (at->second.unloading)
      return fail_field("lora_name", "the LoRA adapter '{}' is being unloaded", name);
  }
  REFRAIN_ASSIGN_OR_RETURN(AdapterSource source, source_of(name, path));
  auto loading = std::make_shared<Pending>();
  entries_[name] = {path, source.module, loading, nullptr};
  engine.load_adapter(std::move(source), answer_to(loading));
  return loading;
}

Result<AdapterSource> LocalAdapters::source_of(const std::string& name, const std::string& path) {
  if (name.empty() || std::ranges::count(model_names_, name) > 0)
    return fail_field("lora_name", "'{}' is {}", name,
                      name.empty() ? "no name" : "a name of the model itself");
  AdapterSource source;
  source.name = name;
  REFRAIN_ASSIGN_OR_RETURN(source.module, folder_of(path));
  const fs::path folder = fs::path(paths_.directory) / source.module;
  auto digest = adapter_digest(folder);
  if (!digest) {
    std::error_code ignored;  // it goes with the directory at the latest
    if (own_) fs::remove_all(folder, ignored);
    return fail_field("lora_path", "{} is no LoRA adapter: {}", path, digest.error().message);
  }
  source.digest = std::move(*digest);
  source.root = path;
  return source;
}

// The name of the adapter's folder in the directory that the workers know.
Result<std::string> LocalAdapters::folder_of(const std::string& path) {
  std::error_code error;
  const fs::path given = fs::canonical(path, error);
  if (error || !fs::is_directory(given, error))
    return fail_field("lora_path", "{} is no directory", path);
  if (own_) {
    std::string name = fmt::format("{}", ++num_folders_);
    REFRAIN_RETURN_IF_ERROR(link_files(given, fs::path(paths_.directory) / name));
    return name;
  }
  if (given.parent_path() == fs::canonical(paths_.directory, error))
    return given.filename().string();
  return fail_field("lora_path",
                    "{} is no folder of --lora-dir {}: put it there, or leave --lora-dir out, and "
                    "an adapter may be anywhere",
                    path, paths_.directory);
}

}  // namespace refrain
