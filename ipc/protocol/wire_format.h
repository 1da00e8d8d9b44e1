#pragma once
// Private to ipc/protocol and the codec of runtime/front: the fields of each message in wire order.
// The counts make sure that none is forgotten. A change here needs a new kProtocolVersion.

#include "ipc/protocol/archive.h"
#include "ipc/protocol/field_count.h"
#include "ipc/protocol/limits.h"
#include "ipc/protocol/messages.h"

namespace refrain::ipc {

template <class Archive>
void serialize(Archive& ar, WorkerConfig& m) {
  static_assert(wire::field_count<WorkerConfig>() == 45);
  ar(m.tensor_parallel_size, m.max_num_seqs, m.max_num_batched_tokens, m.max_model_len,
     m.block_size, wire::Name{"dtype", m.dtype}, wire::Name{"kv_cache_dtype", m.kv_cache_dtype},
     wire::Name{"attention_backend", m.attention_backend}, m.disable_cascade_attn,
     m.batch_invariant, m.kv_cache_memory_bytes, m.gpu_memory_utilization,
     m.num_gpu_blocks_override, m.load_dummy, m.seed, m.enforce_eager,
     wire::Name{"cudagraph_mode", m.cudagraph_mode}, m.has_capture_sizes,
     wire::List<int32_t>{"cudagraph_capture_sizes", m.cudagraph_capture_sizes, kMaxShortList},
     m.max_cudagraph_capture_size, m.cudagraph_num_of_warmups, m.num_speculative_tokens,
     m.draft_model, wire::Choice<DraftHead>{"draft_head", m.draft_head, DraftHead::kEagle3},
     m.draft_tensor_parallel_size, m.prompt_lookup_min, m.prompt_lookup_max, m.synthetic_acceptance,
     m.has_splitting_ops,
     wire::Texts{"splitting_ops", m.splitting_ops, kMaxSplittingOps, kMaxNameBytes},
     m.disable_padding, m.max_padding_ratio, m.debug_cudagraph, m.collective_timeout_ms,
     m.disable_custom_all_reduce, m.audit, m.max_loras, m.max_lora_rank,
     m.cudagraph_specialize_lora, m.split_prefill, wire::Name{"pooling", m.pooling}, m.kv_transfer,
     wire::Name{"kv_transfer_backend", m.kv_transfer_backend}, m.publish_layers,
     wire::Name{"logprobs_mode", m.logprobs_mode});
}

template <class Archive>
void serialize(Archive& ar, Hello& m) {
  static_assert(wire::field_count<Hello>() == 14);
  ar(m.protocol_version, wire::Name{"build_id", m.build_id},
     wire::Name{"model_digest", m.model_digest}, m.group, m.rank, m.tensor_parallel_size, m.pid,
     m.process_start, wire::Name{"realm", m.realm}, wire::Name{"host", m.host},
     wire::Name{"device", m.device}, wire::Name{"held_group", m.held_group}, m.last_epoch,
     wire::Name{"role", m.role});
}

template <class Archive>
void serialize(Archive& ar, Welcome& m) {
  static_assert(wire::field_count<Welcome>() == 7);
  ar(m.config, wire::Name{"group_token", m.group_token}, m.pid, m.process_start,
     wire::Name{"realm", m.realm}, wire::Name{"held_group", m.held_group}, m.check_weights);
}

template <class Archive>
void serialize(Archive& ar, Refuse& m) {
  static_assert(wire::field_count<Refuse>() == 1);
  ar(wire::Text{"reason", m.reason, kMaxTextBytes});
}

template <class Archive>
void serialize(Archive& ar, Progress& m) {
  static_assert(wire::field_count<Progress>() == 4);
  ar(wire::Choice<StartPhase>{"phase", m.phase, StartPhase::kReady}, m.done, m.total,
     wire::Text{"detail", m.detail, kMaxTextBytes});
}

template <class Archive>
void serialize(Archive& ar, StateGroup& m) {
  static_assert(wire::field_count<StateGroup>() == 6);
  ar(wire::Name{"name", m.name}, wire::Choice<StateKind>{"kind", m.kind, StateKind::kSlot},
     m.window, m.bytes, m.num_blocks, m.cascade_keys);
}

template <class Archive>
void serialize(Archive& ar, Loaded& m) {
  static_assert(wire::field_count<Loaded>() == 5);
  ar(wire::Items<StateGroup>{"groups", m.groups, kMaxStateGroups, kMinStateGroupBytes},
     m.weight_bytes, m.seconds, m.kept, m.steps_together);
}

template <class Archive>
void serialize(Archive& ar, InitCache& m) {
  static_assert(wire::field_count<InitCache>() == 1);
  ar(wire::List<int64_t>{"num_blocks", m.num_blocks, kMaxStateGroups});
}

template <class Archive>
void serialize(Archive& ar, ManifestEntry& m) {
  static_assert(wire::field_count<ManifestEntry>() == 12);
  ar(wire::Name{"mode", m.mode}, m.num_tokens, m.num_reqs, m.uniform, m.has_lora,
     wire::Choice<CaptureHiddenMode>{"hidden", m.hidden, CaptureHiddenMode::kFull}, m.pieces,
     m.nodes, m.bytes, m.capture_ms, m.digest, m.launch_digest);
}

template <class Archive>
void serialize(Archive& ar, Ready& m) {
  static_assert(wire::field_count<Ready>() == 10);
  ar(wire::Name{"cudagraph_mode", m.cudagraph_mode}, m.uniform_query_len,
     wire::List<int32_t>{"capture_sizes", m.capture_sizes, kMaxShortList},
     wire::Items<ManifestEntry>{"manifest", m.manifest, kMaxShortList, kMinManifestEntryBytes},
     m.arena_bytes, wire::Texts{"warnings", m.warnings, 256, 2048},
     wire::Texts{"memory_tags", m.memory_tags, kMaxShortList, kMaxNameBytes},
     wire::List<int64_t>{"memory_bytes", m.memory_bytes, kMaxShortList},
     wire::List<int64_t>{"num_blocks", m.num_blocks, kMaxStateGroups}, m.row_tile);
}

template <class Archive>
void serialize(Archive& ar, SlotSetup& m) {
  static_assert(wire::field_count<SlotSetup>() == 27);
  ar(m.slot, m.temperature, m.top_p, m.min_p, m.repetition_penalty, m.presence_penalty,
     m.frequency_penalty, m.top_k, m.num_logprobs, m.num_prompt_logprobs, m.adapter, m.prompt_len,
     m.seed, wire::List<TokenId>{"bias_tokens", m.bias_tokens, kMaxSlotTokens},
     wire::List<float>{"bias_values", m.bias_values, kMaxSlotTokens}, m.has_allowed_tokens,
     wire::List<TokenId>{"allowed_tokens", m.allowed_tokens, kMaxSlotTokens},
     wire::List<uint32_t>{"allowed_mask", m.allowed_mask, kMaxSlotTokens}, m.min_tokens,
     wire::List<TokenId>{"end_tokens", m.end_tokens, kMaxSlotTokens},
     wire::List<uint8_t>{"grammar", m.grammar, kMaxGrammarBytes},
     wire::List<TokenId>{"reasoning_end", m.reasoning_end, kMaxShortList}, m.reasoning_begin,
     wire::List<TokenId>{"bad_words", m.bad_words, kMaxSlotTokens},
     wire::List<TokenId>{"output_tokens", m.output_tokens, kMaxStepTokens}, m.history_begin,
     wire::List<TokenId>{"history", m.history, kMaxStepTokens});
}

template <class Archive>
void serialize(Archive& ar, Rows& m) {
  static_assert(wire::field_count<Rows>() == 6);
  ar(wire::List<SlotId>{"slot", m.slot, kMaxRows},
     wire::List<int32_t>{"num_tokens", m.num_tokens, kMaxRows},
     wire::List<int32_t>{"computed", m.computed, kMaxRows},
     wire::List<uint8_t>{"flags", m.flags, kMaxRows},
     wire::List<TokenId>{"token_ids", m.token_ids, kMaxStepTokens},
     wire::List<TokenId>{"next_tokens", m.next_tokens, kMaxRows});
}

template <class Archive>
void serialize(Archive& ar, Run& m) {
  static_assert(wire::field_count<Run>() == 5);
  ar(wire::Choice<ProgramId>{"program", m.program, ProgramId::kDraftModel},
     wire::Choice<ForwardMode>{"mode", m.mode, ForwardMode::kPrebuilt}, m.rows, m.part, m.parts);
}

template <class Archive>
void serialize(Archive& ar, BlockUpdates& m) {
  static_assert(wire::field_count<BlockUpdates>() == 3);
  ar(wire::List<SlotId>{"slot", m.slot, kMaxBlockUpdates},
     wire::List<int32_t>{"index", m.index, kMaxBlockUpdates},
     wire::List<BlockId>{"block", m.block, kMaxBlockUpdates});
}

template <class Archive>
void serialize(Archive& ar, AdapterPlacement& m) {
  static_assert(wire::field_count<AdapterPlacement>() == 2);
  ar(m.place, m.adapter);
}

template <class Archive>
void serialize(Archive& ar, StepSize& m) {
  static_assert(wire::field_count<StepSize>() == 6);
  ar(m.num_tokens, m.num_reqs, m.even, m.cascade, m.has_lora, m.allowed_modes);
}

template <class Archive>
void serialize(Archive& ar, Step& m) {
  static_assert(wire::field_count<Step>() == 12);
  ar(m.step, m.cascade, m.allowed_modes, wire::Items<Run>{"runs", m.runs, kMaxRuns, kMinRunBytes},
     wire::Items<BlockUpdates>{"blocks", m.blocks, kMaxStateGroups, kMinBlockUpdatesBytes},
     wire::Items<SlotSetup>{"setups", m.setups, kMaxRows, kMinSlotSetupBytes}, m.audit, m.has_lora,
     wire::Items<AdapterPlacement>{"placements", m.placements, kMaxAdapters,
                                   kAdapterPlacementBytes},
     m.shared_prefix, m.shared_rows,
     wire::Items<StepSize>{"together", m.together, kMaxReplicas, kStepSizeBytes});
}

template <class Archive>
void serialize(Archive& ar, AuditResult& m) {
  static_assert(wire::field_count<AuditResult>() == 5);
  ar(m.audited, m.differences, m.worst_logit, m.worst_kv, wire::Text{"first", m.first, 2048});
}

template <class Archive>
void serialize(Archive& ar, PromptScores& m) {
  static_assert(wire::field_count<PromptScores>() == 5);
  ar(wire::List<float>{"prompt.logprobs", m.logprobs, kMaxStepTokens},
     wire::List<int32_t>{"prompt.ranks", m.ranks, kMaxStepTokens},
     wire::List<int32_t>{"prompt.top_offsets", m.top_offsets, kMaxStepTokens + 1},
     wire::List<TokenId>{"prompt.top_tokens", m.top_tokens, kMaxTopTokens},
     wire::List<float>{"prompt.top_logprobs", m.top_logprobs, kMaxTopTokens});
}

template <class Archive>
void serialize(Archive& ar, StepResult& m) {
  static_assert(wire::field_count<StepResult>() == 21);
  ar(m.step, m.rank, wire::Choice<RuntimeMode>{"mode", m.mode, RuntimeMode::kFull}, m.key_tokens,
     m.key_reqs, m.key_uniform, m.key_lora,
     wire::Choice<CaptureHiddenMode>{"key_hidden", m.key_hidden, CaptureHiddenMode::kFull},
     m.num_tokens, m.device_ms, wire::List<int32_t>{"token_offsets", m.token_offsets, kMaxRows + 1},
     wire::List<TokenId>{"tokens", m.tokens, kMaxStepTokens},
     wire::List<float>{"logprobs", m.logprobs, kMaxStepTokens},
     wire::List<int32_t>{"top_offsets", m.top_offsets, kMaxStepTokens + 1},
     wire::List<TokenId>{"top_tokens", m.top_tokens, kMaxTopTokens},
     wire::List<float>{"top_logprobs", m.top_logprobs, kMaxTopTokens},
     wire::List<int32_t>{"drafted", m.drafted, kMaxRows},
     wire::List<int32_t>{"too_slow", m.too_slow, kMaxRows}, m.audit, m.prompt,
     wire::List<float>{"pooled", m.pooled, kMaxPooled});
}

template <class Archive>
void serialize(Archive& ar, Heartbeat& m) {
  static_assert(wire::field_count<Heartbeat>() == 2);
  ar(m.last_step, m.counter);
}

template <class Archive>
void serialize(Archive& ar, Shutdown& m) {
  static_assert(wire::field_count<Shutdown>() == 1);
  ar(wire::Text{"reason", m.reason, kMaxTextBytes});
}

template <class Archive>
void serialize(Archive& ar, TakeRole& m) {
  static_assert(wire::field_count<TakeRole>() == 1);
  ar(wire::Choice<GroupRole>{"role", m.role, GroupRole::kDecode});
}

template <class Archive>
void serialize(Archive& ar, Failed& m) {
  static_assert(wire::field_count<Failed>() == 3);
  ar(m.step, wire::Text{"message", m.message, kMaxTextBytes}, m.configuration);
}

template <class Archive>
void serialize(Archive& ar, Position& m) {
  static_assert(wire::field_count<Position>() == 3);
  ar(m.last_step, m.launches, m.counts_launches);
}

template <class Archive>
void serialize(Archive& ar, Grammar& m) {
  static_assert(wire::field_count<Grammar>() == 2);
  ar(m.request, wire::List<uint8_t>{"source", m.source, kMaxGrammarBytes});
}

template <class Archive>
void serialize(Archive& ar, GrammarReady& m) {
  static_assert(wire::field_count<GrammarReady>() == 1);
  ar(m.request);
}

template <class Archive>
void serialize(Archive& ar, LoadAdapter& m) {
  static_assert(wire::field_count<LoadAdapter>() == 3);
  ar(m.id, wire::Name{"name", m.name}, wire::Name{"digest", m.digest});
}

template <class Archive>
void serialize(Archive& ar, AdapterLoaded& m) {
  static_assert(wire::field_count<AdapterLoaded>() == 2);
  ar(m.id, wire::Text{"error", m.error, kMaxTextBytes});
}

template <class Archive>
void serialize(Archive& ar, UnloadAdapter& m) {
  static_assert(wire::field_count<UnloadAdapter>() == 1);
  ar(m.id);
}

template <class Archive>
void serialize(Archive& ar, RankAddress& m) {
  static_assert(wire::field_count<RankAddress>() == 3);
  ar(wire::Name{"memory", m.memory}, wire::Name{"address", m.address}, wire::Name{"key", m.key});
}

template <class Archive>
void serialize(Archive& ar, Peers& m) {
  static_assert(wire::field_count<Peers>() == 1);
  ar(wire::Items<RankAddress>{"ranks", m.ranks, kMaxGroupRanks, kMinRankAddressBytes});
}

template <class Archive>
void serialize(Archive& ar, KvPart& m) {
  static_assert(wire::field_count<KvPart>() == 4);
  ar(wire::Name{"name", m.name}, m.first_unit, m.units, m.unit_bytes);
}

template <class Archive>
void serialize(Archive& ar, KvStates& m) {
  static_assert(wire::field_count<KvStates>() == 3);
  ar(m.num_layers, m.num_blocks,
     wire::Items<KvPart>{"parts", m.parts, kMaxKvParts, kMinKvPartBytes});
}

template <class Archive>
void serialize(Archive& ar, KvPiece& m) {
  static_assert(wire::field_count<KvPiece>() == 4);
  ar(m.address, m.bytes, m.descriptor, wire::List<uint64_t>{"words", m.words, kMaxKvPieceWords});
}

template <class Archive>
void serialize(Archive& ar, KvUcxMemory& m) {
  static_assert(wire::field_count<KvUcxMemory>() == 3);
  ar(m.address, m.bytes, wire::List<uint8_t>{"key", m.key, kMaxUcxBytes});
}

template <class Archive>
void serialize(Archive& ar, KvUcx& m) {
  static_assert(wire::field_count<KvUcx>() == 3);
  ar(wire::List<uint8_t>{"worker", m.worker, kMaxUcxBytes},
     wire::List<uint64_t>{"regions", m.regions, kMaxShortList},
     wire::Items<KvUcxMemory>{"memory", m.memory, kMaxShortList, kMinKvUcxMemoryBytes});
}

template <class Archive>
void serialize(Archive& ar, KvExport& m) {
  static_assert(wire::field_count<KvExport>() == 9);
  ar(wire::Name{"realm", m.realm}, m.pid, m.process_start,
     wire::List<uint64_t>{"regions", m.regions, kMaxShortList},
     wire::Items<KvPiece>{"pieces", m.pieces, kMaxShortList, kMinKvPieceBytes}, m.tcp, m.ucx,
     m.layer_flags, wire::Items<KvStates>{"states", m.states, kMaxStateGroups, kMinKvStatesBytes});
}

template <class Archive>
void serialize(Archive& ar, KvPeers& m) {
  static_assert(wire::field_count<KvPeers>() == 3);
  ar(m.group, m.epoch, wire::Items<KvExport>{"ranks", m.ranks, kMaxGroupRanks, kMinKvExportBytes});
}

template <class Archive>
void serialize(Archive& ar, KvBlocks& m) {
  static_assert(wire::field_count<KvBlocks>() == 2);
  ar(wire::List<BlockId>{"from", m.from, kMaxBlockUpdates},
     wire::List<BlockId>{"to", m.to, kMaxBlockUpdates});
}

template <class Archive>
void serialize(Archive& ar, PullBlocks& m) {
  static_assert(wire::field_count<PullBlocks>() == 5);
  ar(m.id, m.group, m.epoch,
     wire::Items<KvBlocks>{"blocks", m.blocks, kMaxStateGroups, kMinKvBlocksBytes}, m.step);
}

template <class Archive>
void serialize(Archive& ar, CancelPull& m) {
  static_assert(wire::field_count<CancelPull>() == 1);
  ar(m.id);
}

template <class Archive>
void serialize(Archive& ar, Pulled& m) {
  static_assert(wire::field_count<Pulled>() == 5);
  ar(m.id, m.bytes, m.ended, wire::Text{"error", m.error, kMaxTextBytes}, m.early_bytes);
}

}  // namespace refrain::ipc
