#pragma once
// LoRA adapters of a local engine, which its process names by path. No message carries a path
// workers find each adapter as a folder of one directory. That is --lora-dir where it is
// given, and then no other folder may be named; else it is a private one, in which each adapter
// becomes a folder of links to its files. Any thread.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/engine/adapters.h"
#include "runtime/supervise/run_directory.h"

namespace refrain {

class Engine;

class LocalAdapters {
 public:
  // Fills --lora-dir where LoRA is on and none is given: workers that start later know it.
  static Result<std::unique_ptr<LocalAdapters>> create(EngineConfig& config);

  // Loads the adapter unless it is there. False: not within the timeout; call it again to wait on.
  Result<bool> load(Engine& engine, const std::string& name, const std::string& path,
                    Duration timeout);
  // The same until its last request has ended and no worker has it.
  Result<bool> unload(Engine& engine, const std::string& name, Duration timeout);

 private:
  struct Pending;
  struct Entry {
    std::string path;    // as it was given
    std::string folder;  // as workers know it
    std::shared_ptr<Pending> loading;
    std::shared_ptr<Pending> unloading;  // none: nobody has asked
  };
  LocalAdapters() = default;
  static AdapterDone answer_to(std::shared_ptr<Pending> pending);
  Result<std::shared_ptr<Pending>> begin(Engine& engine, const std::string& name,
                                         const std::string& path);
  void forget(const std::string& name, const std::shared_ptr<Pending>& ended);
  Result<AdapterSource> source_of(const std::string& name, const std::string& path);
  Result<std::string> folder_of(const std::string& path);

  bool enabled_ = false;
  std::vector<std::string> model_names_;
  LoraPaths paths_;
  std::optional<RunDirectory> own_;  // without a given --lora-dir
  std::mutex mutex_;                 // guards what follows
  std::map<std::string, Entry> entries_;
  int num_folders_ = 0;
};

}  // namespace refrain
