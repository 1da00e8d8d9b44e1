#pragma once
// What the front and the coordinator say to each other (docs/wire.md). Plain structs; both ends are
// of one build, on one machine.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/process_identity.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/output_processor.h"

namespace refrain::front {

// The coordinator's first word, repeated until a session begins. Belongs to none itself.
struct Hello {
  std::string build_id;
  uint64_t incarnation = 0;   // of this coordinator: another number is another one
  uint64_t last_session = 0;  // that it has had; 0: none
  ProcessIdentity process;
};
// The front's answer: a session begins, in which every request is submitted anew. Requests of the
// session before end.
struct Welcome {
  uint64_t session = 0;
  ProcessIdentity process;
};

// From the front.
struct Submit {
  RequestId id = 0;         // the front's own
  GenerateRequest request;  // without what only texts need; its adapter is the name:
  std::string adapter;      // empty: none
};
struct Cancel {
  RequestId id = 0;
  bool stopped = false;  // by a stop string: it has its answer
};
struct Taken {  // so many batches of tokens have been worked off
  uint32_t batches = 0;
};
struct AskStats {
  uint64_t ticket = 0;
};
struct LoadAdapter {
  uint64_t ticket = 0;
  AdapterSource source;
};
struct UnloadAdapter {
  uint64_t ticket = 0;
  std::string name;
};
struct OrderGroup {
  uint64_t ticket = 0;
  GroupOrder order;
};

// From the coordinator.
struct Tokens {  // a step's, in the front's ids
  std::vector<TokenArrival> arrivals;
};
struct Ended {  // without a further token
  RequestId id = 0;
  FinishReason reason = FinishReason::kNone;
  std::optional<Error> error;
};
struct Answer {  // to an order
  uint64_t ticket = 0;
  std::optional<Error> error;
};
struct Stats {
  uint64_t ticket = 0;
  EngineStats stats;
  uint64_t late = 0;  // AdmissionStats::late
};
struct State {  // whenever a group's changes, and now and then
  EngineHealth health;
};

using Message = std::variant<Hello, Welcome, Submit, Cancel, Taken, AskStats, LoadAdapter,
                             UnloadAdapter, OrderGroup, Tokens, Ended, Answer, Stats, State>;
const char* message_name(size_t index);  // of an alternative

}  // namespace refrain::front
