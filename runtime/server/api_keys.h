#pragma once
// Clients' keys: compared in constant time by their SHA-256, never logged; each has a name,
// a salt for the prefix cache and a limit of concurrent requests. Any thread.

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

class ApiKey {
 public:
  // `max_concurrency` 0: no limit.
  ApiKey(std::string name, int64_t max_concurrency)
      : name_(std::move(name)), max_concurrency_(max_concurrency) {}

  const std::string& name() const { return name_; }
  // Prompts of different keys share no cached blocks.
  const std::string& cache_salt() const { return name_; }
  int64_t in_use() const { return in_use_; }

 private:
  friend class KeyLease;
  const std::string name_;
  const int64_t max_concurrency_;
  std::atomic<int64_t> in_use_{0};
};

// A key's requests that run or wait; they are given back when it goes.
class KeyLease {
 public:
  explicit KeyLease(std::shared_ptr<ApiKey> key) : key_(std::move(key)) {}
  KeyLease(KeyLease&& other) noexcept
      : key_(std::move(other.key_)), count_(std::exchange(other.count_, 0)) {}
  KeyLease& operator=(KeyLease&&) = delete;
  ~KeyLease() { release(); }

  // Makes them `count` in all. kOverloaded: others of the key run; kInvalidArgument: more than the
  // key may ever have.
  Status take(int64_t count);
  void release();
  const ApiKey& key() const { return *key_; }

 private:
  std::shared_ptr<ApiKey> key_;
  int64_t count_ = 0;
};

class ApiKeys {
 public:
  // --api-key and --api-key-file; errors name the option or the file's entry, never a key.
  static Result<ApiKeys> load(const EngineConfig& config);

  // The key of an Authorization header's "Bearer …", null when it is none of ours. Without any
  // keys everybody is the nameless one.
  std::shared_ptr<ApiKey> find(std::string_view authorization) const;
  // Of an Authorization header: --control-key, which is no client's. Without that option nobody's.
  bool is_operator(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view secret);
  Status add(const std::string& secret, std::string name, int64_t max_concurrency,
             const std::string& where);
  Status read_file(const std::string& path);

  std::vector<std::pair<Digest, std::shared_ptr<ApiKey>>> keys_;
  std::optional<Digest> operator_;
  std::shared_ptr<ApiKey> nameless_ = std::make_shared<ApiKey>("", 0);
};

}  // namespace refrain
