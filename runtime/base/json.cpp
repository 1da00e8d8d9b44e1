#include "runtime/base/json.h"

REFRAIN_JSON_PARTS();
