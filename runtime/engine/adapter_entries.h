#pragma once
// What Adapters and the front's keeper of them ask of their entries alike: a map by AdapterId of
// structs with `source`, `going` (it is being unloaded) and `loaded` (set: nobody was served by it
// yet). Whoever calls holds the map's lock.

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/adapters.h"

namespace refrain::adapter_entries {

template <class Entry>
bool is_served(const Entry& entry) {
  return !entry.going && !entry.loaded;
}

template <class Entries>
std::optional<AdapterId> find(const Entries& entries, const std::string& name) {
  for (const auto& [id, entry] : entries)
    if (entry.source.name == name && is_served(entry)) return id;
  return std::nullopt;
}

template <class Entries>
std::vector<AdapterSource> list(const Entries& entries) {
  std::vector<AdapterSource> all;
  for (const auto& [id, entry] : entries)
    if (is_served(entry)) all.push_back(entry.source);
  return all;
}

// Whether another one may have this name, of at most `most`.
template <class Entries>
Status check_new(const Entries& entries, const std::string& name, size_t most) {
  for (const auto& [id, entry] : entries)
    if (entry.source.name == name)
      return fail_field("lora_name", "the LoRA adapter '{}' {}", name,
                        entry.going ? "is being unloaded" : "has already been loaded");
  if (entries.size() >= most)
    return fail_field("lora_name",
                      "{} LoRA adapters are loaded, as many as --max-cpu-loras allows; unload one",
                      entries.size());
  return {};
}

inline Error not_loaded(const std::string& name) {
  return {ErrorCode::kNotFound, fmt::format("the LoRA adapter '{}' is not loaded", name),
          "lora_name"};
}

}  // namespace refrain::adapter_entries
