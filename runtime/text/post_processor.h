#pragma once
// The "post_processor" of tokenizer.json: the tokens put before and behind an encoded text when
// special tokens are asked for. Immutable after load.

#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace refrain::text {

class JsonView;

struct PostProcessor {
  std::vector<TokenId> before, behind;

  // `json`: the "post_processor" object.
  static Result<PostProcessor> load(const JsonView& json);
};

}  // namespace refrain::text
