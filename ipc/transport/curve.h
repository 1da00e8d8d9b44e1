#pragma once
// Keys of an encrypted connection (CURVE, R-5): pairs, allow-lists and the files they lie in. A
// line of a file is `public KEY NAME`, `secret KEY` or, beginning with "# ", a comment; keys are 40
// characters of Z85. Blocking file calls, at start only; any thread.

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::ipc {

struct CurveKeyPair {
  std::string public_key;  // Z85
  std::string secret_key;  // Z85

  CurveKeyPair() = default;
  CurveKeyPair(CurveKeyPair&&) = default;
  CurveKeyPair& operator=(CurveKeyPair&&) = default;
  ~CurveKeyPair();  // overwrites the secret
};

// kUnavailable where libzmq was built without CURVE (libsodium).
Status check_curve_is_there();

Result<CurveKeyPair> make_curve_key_pair();

// A key file must belong to our user (or root) with no access for others, and its two keys must
// fit.
Result<CurveKeyPair> load_curve_key(const std::filesystem::path& file);
// Public keys, at least one, none twice.
Result<std::vector<std::string>> load_curve_allow_list(const std::filesystem::path& file);

// Makes in `directory` (mode 0700, made if missing) what is not there yet: coordinator.key and
// worker.allow, and NAME.key (mode 0600) for each worker, whose public key goes to
// coordinator.allow. The paths of the files written. A worker that has a key already is an error.
Result<std::vector<std::filesystem::path>> add_curve_keys(const std::filesystem::path& directory,
                                                          const std::vector<std::string>& workers);

}  // namespace refrain::ipc
