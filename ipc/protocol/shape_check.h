#pragma once
// Private to ipc/protocol: parallel arrays of a message must agree in length, whoever sent it.
// Pure; any thread.

#include "ipc/protocol/messages.h"

namespace refrain::ipc {

// What is wrong, or null when the message's arrays fit together.
const char* shape_mismatch(const Message& message);

}  // namespace refrain::ipc
