#include "runtime/front/codec.h"

#include <array>
#include <new>
#include <type_traits>
#include <utility>

#include "ipc/protocol/wire_format.h"

// Fields in wire order, found by the archives where the types are. The counts make sure that none
// is forgotten.
namespace refrain {
namespace {

using ipc::wire::Choice;
using ipc::wire::Items;
using ipc::wire::List;
using ipc::wire::Text;

constexpr uint32_t kMost = 1u << 25;  // of any list; the bytes left bound it first
constexpr uint32_t kMostText = 1 << 20;

template <class Archive, class T, class Fields>
void maybe(Archive& ar, std::optional<T>& value, const Fields& fields) {
  bool there = value.has_value();
  ar(there);
  if (there && !value) value.emplace();
  if (there) fields(*value);
}

// A string of any bytes.
template <class Archive>
void bytes(Archive& ar, const char* field, std::string& value) {
  std::vector<char> list(value.begin(), value.end());
  ar(List<char>{field, list, kMost});
  value.assign(list.begin(), list.end());
}

template <class Archive>
void duration(Archive& ar, Duration& value) {
  int64_t ticks = value.count();
  ar(ticks);
  value = Duration(ticks);
}

// Read into a fresh one, written from what is there.
template <class Archive, class T>
void shared(Archive& ar, std::shared_ptr<const T>& value, const auto& fields) {
  bool there = value != nullptr;
  ar(there);
  if (!there) return;
  if (value != nullptr) return fields(const_cast<T&>(*value));
  auto read = std::make_shared<T>();
  fields(*read);
  value = std::move(read);
}

}  // namespace

template <class Archive>
void serialize(Archive& ar, ProcessIdentity& m) {
  bytes(ar, "realm", m.realm);
  ar(m.pid, m.start);
}

template <class Archive>
void serialize(Archive& ar, Error& m) {
  ar(Choice<ErrorCode>{"code", m.code, ErrorCode::kInternal}, Text{"message", m.message, kMostText},
     Text{"field", m.field, kMostText});
}

struct WireBias {
  TokenId token = 0;
  float bias = 0;
};
template <class Archive>
void serialize(Archive& ar, WireBias& m) {
  ar(m.token, m.bias);
}
struct WireTokens {
  std::vector<TokenId> tokens;
};
template <class Archive>
void serialize(Archive& ar, WireTokens& m) {
  ar(List<TokenId>{"bad_words", m.tokens, kMost});
}

// Stop strings and what else is about text stays in the front.
template <class Archive>
void serialize(Archive& ar, SamplingParams& m) {
  static_assert(ipc::wire::field_count<SamplingParams>() == 23);
  ar(m.temperature, m.top_p, m.top_k, m.min_p, m.repetition_penalty, m.presence_penalty,
     m.frequency_penalty);
  maybe(ar, m.seed, [&ar](uint64_t& seed) { ar(seed); });
  std::vector<WireBias> biases;
  for (const auto& [token, bias] : m.logit_bias) biases.push_back({token, bias});
  ar(Items<WireBias>{"logit_bias", biases, kMost, 8});
  m.logit_bias.clear();
  for (const WireBias& each : biases) m.logit_bias.emplace_back(each.token, each.bias);
  maybe(ar, m.allowed_token_ids, [&ar](std::vector<TokenId>& tokens) {
    ar(List<TokenId>{"allowed_token_ids", tokens, kMost});
  });
  std::vector<WireTokens> words;
  for (std::vector<TokenId>& word : m.bad_words) words.push_back({std::move(word)});
  ar(Items<WireTokens>{"bad_words", words, kMost, 4});
  m.bad_words.clear();
  for (WireTokens& word : words) m.bad_words.push_back(std::move(word.tokens));
  bytes(ar, "grammar", m.grammar);
  ar(List<TokenId>{"reasoning_end", m.reasoning_end, kMost}, m.reasoning_begin, m.logprobs,
     m.prompt_logprobs, m.max_tokens, m.min_tokens,
     List<TokenId>{"stop_token_ids", m.stop_token_ids, kMost}, m.ignore_eos);
}

template <class Archive>
void serialize(Archive& ar, BegunAnswer& m) {
  static_assert(ipc::wire::field_count<BegunAnswer>() == 2);
  ar(List<TokenId>{"begun", m.tokens, kMost}, m.cached_tokens);
}

// Its adapter and its output thread are the other side's own.
template <class Archive>
void serialize(Archive& ar, GenerateRequest& m) {
  static_assert(ipc::wire::field_count<GenerateRequest>() == 11);
  ar(List<TokenId>{"prompt", m.prompt, kMost}, m.sampling, m.pools);
  bytes(ar, "cache_salt", m.cache_salt);
  maybe(ar, m.max_queue_wait, [&ar](Duration& wait) { duration(ar, wait); });
  ar(m.priority);
  maybe(ar, m.timeout, [&ar](Duration& timeout) { duration(ar, timeout); });
  ar(m.admitted);
  maybe(ar, m.begun, [&ar](BegunAnswer& begun) { ar(begun); });
}

template <class Archive>
void serialize(Archive& ar, TokenLogprob& m) {
  ar(m.token, m.logprob);
}

template <class Archive>
void serialize(Archive& ar, TokenArrival& m) {
  static_assert(ipc::wire::field_count<TokenArrival>() == 7);
  ar(m.id, m.token.token, m.token.logprob, Items<TokenLogprob>{"top", m.token.top, kMost, 8},
     Choice<StopCause>{"stop", m.stop, StopCause::kGrammar}, m.cached_tokens);
  Duration scheduled = m.scheduled.time_since_epoch();
  duration(ar, scheduled);
  m.scheduled = TimePoint(scheduled);
  shared(ar, m.prompt, [&ar](ipc::PromptScores& scores) { ar(scores); });
  shared(ar, m.pooled, [&ar](std::vector<float>& vector) {
    ar(List<float>{"pooled", vector, kMost});
  });
}

template <class Archive>
void serialize(Archive& ar, AdapterSource& m) {
  static_assert(ipc::wire::field_count<AdapterSource>() == 5);
  bytes(ar, "name", m.name);
  bytes(ar, "module", m.module);
  bytes(ar, "digest", m.digest);
  bytes(ar, "root", m.root);
  ar(m.fixed);
}

template <class Archive>
void serialize(Archive& ar, GroupOrder& m) {
  static_assert(ipc::wire::field_count<GroupOrder>() == 3);
  ar(m.group, Choice<GroupOrder::What>{"what", m.what, GroupOrder::What::kRestart});
  maybe(ar, m.role, [&ar](ipc::GroupRole& role) {
    ar(Choice<ipc::GroupRole>{"role", role, ipc::GroupRole::kDecode});
  });
}

struct WireState {
  GroupState state = GroupState::kWaiting;
};
template <class Archive>
void serialize(Archive& ar, WireState& m) {
  ar(Choice<GroupState>{"state", m.state, GroupState::kStopped});
}

template <class Archive>
void serialize(Archive& ar, EngineHealth& m) {
  static_assert(ipc::wire::field_count<EngineHealth>() == 8);
  ar(Choice<GroupState>{"state", m.state, GroupState::kStopped},
     Text{"detail", m.state_detail, kMostText}, m.epoch, m.seconds_since_last_answer,
     m.seconds_since_progress, m.requests_running, m.requests_waiting);
  std::vector<WireState> groups;
  for (const GroupState state : m.groups) groups.push_back({state});
  ar(Items<WireState>{"groups", groups, kMost, 1});
  m.groups.clear();
  for (const WireState& each : groups) m.groups.push_back(each.state);
}

template <class Archive>
void serialize(Archive& ar, GraphUse& m) {
  static_assert(ipc::wire::field_count<GraphUse>() == 5);
  bytes(ar, "mode", m.mode);
  ar(m.num_tokens, m.padded_tokens, m.count, m.has_lora);
}

template <class Archive>
void serialize(Archive& ar, DraftCounts& m) {
  static_assert(ipc::wire::field_count<DraftCounts>() == 4);
  ar(m.rows, m.tokens, m.forced);
  for (uint64_t& accepted : m.accepted) ar(accepted);
}

template <class Archive>
void serialize(Archive& ar, TransferCounts& m) {
  static_assert(ipc::wire::field_count<TransferCounts>() == 6);
  ar(m.running, m.quarantined, m.done, m.failed, m.bytes, m.early_bytes);
}

template <class Archive>
void serialize(Archive& ar, GroupStats& m) {
  static_assert(ipc::wire::field_count<GroupStats>() == 32);
  ar(m.group, Choice<GroupState>{"state", m.state, GroupState::kStopped},
     Text{"detail", m.state_detail, kMostText}, m.epoch, m.requests_running, m.requests_waiting,
     m.steps_in_flight, m.prompt_tokens, m.generated_tokens, m.cached_prompt_tokens, m.preemptions,
     m.steps, m.group_restarts, m.cascade_steps, m.drafts, m.audited_steps, m.audit_differences,
     Choice<ipc::GroupRole>{"role", m.role, ipc::GroupRole::kDecode}, m.held, m.leases,
     m.leases_expired, m.transfers, m.audit_worst_logit, m.audit_worst_kv,
     Text{"audit_first", m.audit_first, kMostText}, m.blocks_total, m.blocks_free,
     m.seconds_since_last_answer, m.coordinator_us_per_step,
     Items<GraphUse>{"graph_uses", m.graph_uses, kMost, 21},
     Items<ipc::Ready>{"ready", m.ready, kMost, 48},
     ipc::wire::Texts{"devices", m.devices, kMost, kMostText});
}

template <class Archive>
void serialize(Archive& ar, EngineStats& m) {
  ar(static_cast<GroupStats&>(m), m.requests_total, m.requests_stopped, m.requests_at_length,
     m.requests_aborted, m.requests_failed, m.requests_without_logit, m.requests_with_slow_grammar,
     m.requests_resumed, m.kv_link_bytes_per_second, m.prompts_not_moved, m.requests_queued,
     Items<GroupStats>{"groups", m.groups, kMost, 200});
}

namespace front {

template <class Archive>
void serialize(Archive& ar, Hello& m) {
  bytes(ar, "build_id", m.build_id);
  ar(m.incarnation, m.last_session, m.process);
}
template <class Archive>
void serialize(Archive& ar, Welcome& m) {
  ar(m.session, m.process);
}
template <class Archive>
void serialize(Archive& ar, Submit& m) {
  ar(m.id, m.request);
  bytes(ar, "adapter", m.adapter);
}
template <class Archive>
void serialize(Archive& ar, Cancel& m) {
  ar(m.id, m.stopped);
}
template <class Archive>
void serialize(Archive& ar, Taken& m) {
  ar(m.batches);
}
template <class Archive>
void serialize(Archive& ar, AskStats& m) {
  ar(m.ticket);
}
template <class Archive>
void serialize(Archive& ar, LoadAdapter& m) {
  ar(m.ticket, m.source);
}
template <class Archive>
void serialize(Archive& ar, UnloadAdapter& m) {
  ar(m.ticket);
  bytes(ar, "name", m.name);
}
template <class Archive>
void serialize(Archive& ar, OrderGroup& m) {
  ar(m.ticket, m.order);
}
template <class Archive>
void serialize(Archive& ar, Tokens& m) {
  ar(Items<TokenArrival>{"arrivals", m.arrivals, kMost, 35});
}
template <class Archive>
void serialize(Archive& ar, Ended& m) {
  ar(m.id, Choice<FinishReason>{"reason", m.reason, FinishReason::kError});
  maybe(ar, m.error, [&ar](Error& error) { ar(error); });
}
template <class Archive>
void serialize(Archive& ar, Answer& m) {
  ar(m.ticket);
  maybe(ar, m.error, [&ar](Error& error) { ar(error); });
}
template <class Archive>
void serialize(Archive& ar, Stats& m) {
  ar(m.ticket, m.stats, m.late);
}
template <class Archive>
void serialize(Archive& ar, State& m) {
  ar(m.health);
}

namespace {

constexpr size_t kTypes = std::variant_size_v<Message>;
constexpr auto kMaxPayload = [] {
  std::array<uint32_t, kTypes> caps{};
  caps.fill(kMaxFrameBytes - ipc::kHeaderBytes);
  return caps;
}();
constexpr ipc::FrameRules kRules{0x46525152 /* "RQRF" */, 1, kMaxFrameBytes, kMaxPayload,
                                 message_name};

using DecodePayload = void (*)(ipc::wire::Reader&, Message&);
template <size_t... I>
constexpr std::array<DecodePayload, kTypes> make_decoders(std::index_sequence<I...>) {
  return {[](ipc::wire::Reader& in, Message& message) { in(message.emplace<I>()); }...};
}
constexpr auto kDecoders = make_decoders(std::make_index_sequence<kTypes>{});

}  // namespace

const char* message_name(size_t index) {
  constexpr std::array<const char*, kTypes> kNames = {
      "Hello",         "Welcome",    "Submit", "Cancel", "Taken",  "AskStats", "LoadAdapter",
      "UnloadAdapter", "OrderGroup", "Tokens", "Ended",  "Answer", "Stats",    "State"};
  return kNames.at(index);
}

Status encode_frame(const Message& message, const ipc::FrameInfo& info,
                    std::vector<std::byte>& out) {
  out.clear();
  out.resize(ipc::kHeaderBytes);
  ipc::wire::Writer writer(out);
  std::visit([&](const auto& alternative) { writer(alternative); }, message);
  if (out.size() > kMaxFrameBytes)
    return fail(ErrorCode::kTooLarge, "{} of {} bytes; at most {} travel between the processes",
                message_name(message.index()), out.size(), kMaxFrameBytes);
  ipc::finish_frame(kRules, message.index(), info, out);
  return {};
}

Result<DecodedFrame> decode_frame(std::span<const std::byte> frame) try {
  REFRAIN_ASSIGN_OR_RETURN(const ipc::CheckedFrame checked, ipc::check_frame(kRules, frame));
  Result<DecodedFrame> decoded{DecodedFrame{checked.info, {}}};
  ipc::wire::Reader reader(checked.payload);
  kDecoders[checked.type](reader, decoded->message);
  if (reader.ok() && reader.left() > 0)
    reader.reject("{} bytes follow the last field", reader.left());
  if (!reader.ok())
    return fail(ErrorCode::kInvalidArgument, "{}: {}", message_name(checked.type), reader.error());
  return decoded;
} catch (const std::bad_alloc&) {
  return fail(ErrorCode::kInternal, "no memory to decode a frame of {} bytes", frame.size());
}

}  // namespace front
}  // namespace refrain
