#include "runtime/server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "runtime/server/json_fields.h"

namespace refrain {
namespace {

constexpr size_t kMaxKeys = 10000;
constexpr int64_t kMaxConcurrency = 1 << 20;
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kWhatAKeyIs =
    "a key is made of printable ASCII characters without spaces";

// What can stand behind "Bearer " in a header.
bool sendable(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

Status KeyLease::take(int64_t count) {
  const int64_t limit = key_->max_concurrency_;
  if (limit > 0 && count > limit) {
    return fail_field("n", "the request asks for {} answers at once; its key may have {}", count,
                      limit);
  }
  int64_t used = key_->in_use_;
  do {
    if (limit > 0 && used + count - count_ > limit) {
      return fail(ErrorCode::kOverloaded,
                  "{} requests of this key run or wait, and it may have {}; try again when one has "
                  "ended",
                  used, limit);
    }
  } while (!key_->in_use_.compare_exchange_weak(used, used + count - count_));
  count_ = count;
  return {};
}

void KeyLease::release() {
  if (key_) key_->in_use_ -= std::exchange(count_, 0);
}

ApiKeys::Digest ApiKeys::digest(std::string_view secret) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), digest.data());
  return digest;
}

Status ApiKeys::add(const std::string& secret, std::string name, int64_t max_concurrency,
                    const std::string& where) {
  if (!sendable(secret)) {
    return fail_field("--api-key", "{}: {}", where, kWhatAKeyIs);
  }
  const Digest added = digest(secret);
  for (const auto& [known, key] : keys_) {
    if (known == added) return fail_field("--api-key", "{}: the key is there twice", where);
    if (key->name() == name) {
      return fail_field("--api-key", "{}: the name '{}' is there twice", where, name);
    }
  }
  if (keys_.size() == kMaxKeys) {
    return fail_field("--api-key", "{}: at most {} keys are taken", where, kMaxKeys);
  }
  keys_.emplace_back(added, std::make_shared<ApiKey>(std::move(name), max_concurrency));
  return {};
}

// {"keys": [{"key": "…", "name": "…", "max_concurrency": 8}, …]}
Status ApiKeys::read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail_field("--api-key-file", "--api-key-file {} cannot be read", path);
  std::stringstream text;
  text << file.rdbuf();
  const auto json = parse_json(text.str());
  // What the parser says of a broken file would quote it.
  if (!json) return fail_field("--api-key-file", "--api-key-file {} is not valid JSON", path);
  const Json* list = json->is_object() ? JsonFields(*json).get("keys") : nullptr;
  if (list == nullptr || !list->is_array() || list->empty()) {
    return fail_field("--api-key-file",
                      "--api-key-file {} must be an object with a list \"keys\" of at least one",
                      path);
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& entry = (*list)[i];
    const std::string where = fmt::format("--api-key-file {}, keys[{}]", path, i);
    if (!entry.is_object()) return fail_field("--api-key-file", "{} is no object", where);
    for (const auto& [name, value] : entry.items()) {
      if (name != "key" && name != "name" && name != "max_concurrency") {
        return fail_field("--api-key-file",
                          "{} has an unknown field; known are key, name and "
                          "max_concurrency",
                          where);
      }
    }
    JsonFields fields(entry);
    const std::string name = fields.string("name").value_or(fmt::format("key {}", i));
    const int64_t most = fields.integer("max_concurrency", 1, kMaxConcurrency).value_or(0);
    if (!fields.ok()) {
      return fail_field("--api-key-file",
                        "{}: name must be a string and max_concurrency a whole "
                        "number from 1 to {}",
                        where, kMaxConcurrency);
    }
    REFRAIN_RETURN_IF_ERROR(add(text_of(entry, "key"), name, most, where));
  }
  return {};
}

Result<ApiKeys> ApiKeys::load(const EngineConfig& config) {
  ApiKeys keys;
  for (size_t i = 0; i < config.api_keys.size(); ++i) {
    REFRAIN_RETURN_IF_ERROR(
        keys.add(config.api_keys[i], fmt::format("api-key {}", i), 0, "--api-key"));
  }
  if (!config.api_key_file.empty()) REFRAIN_RETURN_IF_ERROR(keys.read_file(config.api_key_file));
  if (config.control_key.empty()) return keys;
  if (!sendable(config.control_key))
    return fail_field("--control-key", "--control-key: {}", kWhatAKeyIs);
  keys.operator_ = digest(config.control_key);
  for (const auto& [known, key] : keys.keys_)
    if (known == *keys.operator_)
      return fail_field("--control-key", "--control-key is the client's key '{}' too", key->name());
  return keys;
}

bool ApiKeys::is_operator(std::string_view authorization) const {
  if (!operator_ || !authorization.starts_with(kBearer)) return false;
  const Digest given = digest(authorization.substr(kBearer.size()));
  return CRYPTO_memcmp(operator_->data(), given.data(), given.size()) == 0;
}

std::shared_ptr<ApiKey> ApiKeys::find(std::string_view authorization) const {
  if (keys_.empty()) return nameless_;
  if (!authorization.starts_with(kBearer)) return nullptr;
  const Digest given = digest(authorization.substr(kBearer.size()));
  std::shared_ptr<ApiKey> found;
  // Every key is looked at, and each in a time that does not depend on its bytes.
  for (const auto& [known, key] : keys_) {
    if (CRYPTO_memcmp(known.data(), given.data(), given.size()) == 0) found = key;
  }
  return found;
}

}  // namespace refrain
