#pragma once
// Responses that later ones go on from (previous_response_id), in memory: those used last, within a
// bound of bytes. Each belongs to its key. Any thread.

#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/server/json_fields.h"

namespace refrain {

class ResponseStore {
 public:
  explicit ResponseStore(size_t most_bytes) : most_bytes_(most_bytes) {}

  struct Stored {
    std::string messages;  // the conversation with the answer, as JSON text
    std::string response;
  };
  void put(const std::string& owner, const std::string& id, Stored stored);
  std::optional<Stored> find(const std::string& owner, const std::string& id);
  bool erase(const std::string& owner, const std::string& id);
  size_t bytes() const;

 private:
  struct Entry {
    std::string id, owner;
    Stored stored;
    size_t bytes() const {
      return id.size() + owner.size() + stored.messages.size() + stored.response.size() +
             sizeof(Entry);
    }
  };
  using List = std::list<Entry>;  // used last first
  void drop(List::iterator entry);

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  List entries_;
  std::unordered_map<std::string, List::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace refrain
