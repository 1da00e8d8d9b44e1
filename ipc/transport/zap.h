#pragma once
// Private to ipc/transport: ZeroMQ's question whether a key may come in (ZAP, RFC 27), and the
// answer. For the thread that has the sockets.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::ipc {

inline constexpr const char* kZapAddress = "inproc://zeromq.zap.01";

// A socket that does not linger.
Result<void*> open_socket(void* context, int type);
// Where ZeroMQ asks; one in a context, bound before a server's socket is.
Result<void*> open_zap_socket(void* context);

// Parts of one message; empty when there is none or the context ends.
std::vector<std::string> receive_parts(void* socket);

std::string decoded_key(const std::string& key);  // from Z85 to 32 bytes
std::string encoded_key(const std::string& bytes);

// Keys that are let in (32 bytes) and what the messages of their connections are marked with
// (ZeroMQ's User-Id).
using CurveUsers = std::map<std::string, std::string>;

struct ZapAnswer {
  std::string peer;  // its address, as ZeroMQ has it
  std::string key;   // Z85
  bool let_in = false;
};
// Whom ZeroMQ's client asks again: a peer that is denied for good never comes back.
enum class Denial : uint8_t { kForGood, kForNow };
// Answers the question that waits; nothing: there is none.
std::optional<ZapAnswer> answer_zap(void* zap, const CurveUsers& users,
                                    Denial denial = Denial::kForGood);

}  // namespace refrain::ipc
