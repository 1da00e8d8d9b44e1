#include "tests/unit/ipc/random_message.h"

#include <algorithm>
#include <string>

namespace refrain::ipc {
namespace {

class Generator {
 public:
  Generator(std::mt19937_64& random, size_t size) : random_(random), size_(size) {}

  template <class T>
  T number() {
    if constexpr (std::is_same_v<T, bool>) {
      return random_() % 2 == 0;
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(std::uniform_real_distribution<double>(-1e6, 1e6)(random_));
    } else {
      return static_cast<T>(random_());
    }
  }
  template <class T>
  void set(T& value) {
    value = number<T>();
  }
  void set(std::string& value) {
    static const char* const kPieces[] = {
        "a", "Z", "9", " ", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\n", "\x7f"};
    value.clear();
    for (size_t i = count(); i > 0; --i) value += kPieces[random_() % std::size(kPieces)];
  }
  template <class T>
  void set(std::vector<T>& values) {
    set(values, count());
  }
  template <class T>
  void set(std::vector<T>& values, size_t n) {
    values.resize(n);
    for (T& value : values) set(value);
  }
  template <class E>
  void choose(E& value, E last) {
    value = static_cast<E>(random_() % (static_cast<uint64_t>(last) + 1));
  }
  template <class... T>
  void all(T&... values) {
    (set(values), ...);
  }
  size_t count() { return random_() % (size_ + 1); }

 private:
  std::mt19937_64& random_;
  size_t size_;
};

void fill(Generator& g, WorkerConfig& m) {
  g.all(m.tensor_parallel_size, m.max_num_seqs, m.max_num_batched_tokens, m.max_model_len,
        m.block_size, m.dtype, m.kv_cache_dtype, m.attention_backend, m.disable_cascade_attn,
        m.batch_invariant, m.kv_cache_memory_bytes, m.gpu_memory_utilization,
        m.num_gpu_blocks_override, m.load_dummy, m.seed, m.enforce_eager, m.cudagraph_mode,
        m.has_capture_sizes, m.cudagraph_capture_sizes, m.max_cudagraph_capture_size,
        m.cudagraph_num_of_warmups, m.num_speculative_tokens, m.draft_model, m.prompt_lookup_min,
        m.prompt_lookup_max, m.synthetic_acceptance, m.has_splitting_ops, m.splitting_ops,
        m.disable_padding, m.max_padding_ratio, m.debug_cudagraph, m.collective_timeout_ms,
        m.disable_custom_all_reduce, m.audit, m.max_loras, m.max_lora_rank,
        m.cudagraph_specialize_lora, m.draft_tensor_parallel_size, m.split_prefill, m.pooling,
        m.kv_transfer, m.kv_transfer_backend, m.publish_layers, m.logprobs_mode);
  g.choose(m.draft_head, DraftHead::kEagle3);
}
void fill(Generator& g, Hello& m) {
  g.all(m.protocol_version, m.build_id, m.model_digest, m.group, m.rank, m.tensor_parallel_size,
        m.pid, m.process_start, m.realm, m.host, m.device, m.held_group, m.last_epoch, m.role);
}
void fill(Generator& g, Welcome& m) {
  fill(g, m.config);
  g.all(m.group_token, m.pid, m.process_start, m.realm, m.held_group, m.check_weights);
}
void fill(Generator& g, Refuse& m) { g.all(m.reason); }
void fill(Generator& g, Progress& m) {
  g.choose(m.phase, StartPhase::kReady);
  g.all(m.done, m.total, m.detail);
}
void fill(Generator& g, Loaded& m) {
  g.all(m.weight_bytes, m.seconds, m.kept, m.steps_together);
  m.groups.resize(g.count() % 4);
  for (auto& group : m.groups) {
    g.all(group.name, group.window, group.bytes, group.num_blocks, group.cascade_keys);
    g.choose(group.kind, StateKind::kSlot);
  }
}
void fill(Generator& g, InitCache& m) { g.set(m.num_blocks, g.count() % 4); }
void fill(Generator& g, ManifestEntry& m) {
  g.all(m.mode, m.num_tokens, m.num_reqs, m.uniform, m.has_lora, m.pieces, m.nodes, m.bytes,
        m.capture_ms, m.digest, m.launch_digest);
  g.choose(m.hidden, CaptureHiddenMode::kFull);
}
void fill(Generator& g, Ready& m) {
  g.all(m.cudagraph_mode, m.uniform_query_len, m.capture_sizes, m.arena_bytes, m.warnings,
        m.memory_tags, m.row_tile);
  g.set(m.num_blocks, g.count() % 4);
  m.manifest.resize(g.count());
  for (auto& entry : m.manifest) fill(g, entry);
  g.set(m.memory_bytes, m.memory_tags.size());
}
void fill(Generator& g, SlotSetup& m) {
  g.all(m.slot, m.temperature, m.top_p, m.min_p, m.repetition_penalty, m.presence_penalty,
        m.frequency_penalty, m.top_k, m.num_logprobs, m.num_prompt_logprobs, m.adapter,
        m.prompt_len, m.seed, m.bias_tokens, m.has_allowed_tokens, m.allowed_tokens, m.allowed_mask,
        m.min_tokens, m.end_tokens, m.grammar, m.reasoning_end, m.reasoning_begin, m.bad_words,
        m.output_tokens, m.history_begin, m.history);
  g.set(m.bias_values, m.bias_tokens.size());
}
void fill(Generator& g, Run& m) {
  g.choose(m.program, ProgramId::kDraftModel);
  g.choose(m.mode, ForwardMode::kPrebuilt);
  g.all(m.part, m.parts, m.rows.slot);
  const size_t rows = m.rows.slot.size();
  m.rows.num_tokens.resize(rows);
  size_t tokens = 0;
  for (int32_t& count : m.rows.num_tokens) {
    count = static_cast<int32_t>(g.count() % 5);
    tokens += static_cast<size_t>(count);
  }
  g.set(m.rows.computed, rows);
  g.set(m.rows.flags, rows);
  g.set(m.rows.next_tokens, static_cast<size_t>(std::ranges::count_if(m.rows.flags, [](uint8_t f) {
          return (f & (kScores | kContinues)) != 0;
        })));
  g.set(m.rows.token_ids, tokens);
}
void fill(Generator& g, Step& m) {
  g.all(m.step, m.cascade, m.shared_prefix, m.shared_rows, m.allowed_modes, m.audit, m.has_lora);
  m.placements.resize(g.count() % 4);
  for (auto& placement : m.placements) g.all(placement.place, placement.adapter);
  m.runs.resize(g.count() % 3);
  for (auto& run : m.runs) fill(g, run);
  m.blocks.resize(g.count() % 3);
  for (auto& group : m.blocks) {
    g.all(group.slot);
    g.set(group.index, group.slot.size());
    g.set(group.block, group.slot.size());
  }
  m.setups.resize(g.count() % 4);
  for (auto& setup : m.setups) fill(g, setup);
  m.together.resize(g.count() % 4);
  for (auto& size : m.together)
    g.all(size.num_tokens, size.num_reqs, size.even, size.cascade, size.has_lora,
          size.allowed_modes);
}
void fill(Generator& g, StepResult& m) {
  g.all(m.step, m.rank, m.key_tokens, m.key_reqs, m.key_uniform, m.key_lora, m.num_tokens,
        m.device_ms, m.audit.audited, m.audit.differences, m.audit.worst_logit, m.audit.worst_kv,
        m.audit.first);
  g.choose(m.mode, RuntimeMode::kFull);
  g.choose(m.key_hidden, CaptureHiddenMode::kFull);
  m.token_offsets = {0};
  for (size_t row = g.count() % 8; row > 0; --row)
    m.token_offsets.push_back(m.token_offsets.back() + static_cast<int32_t>(g.count() % 4));
  g.set(m.tokens, static_cast<size_t>(m.token_offsets.back()));
  g.all(m.prompt.logprobs);
  g.set(m.prompt.ranks, m.prompt.logprobs.size());
  if (!m.prompt.logprobs.empty()) m.prompt.top_offsets = {0};
  for (size_t i = 0; i < m.prompt.logprobs.size(); ++i)
    m.prompt.top_offsets.push_back(m.prompt.top_offsets.back() +
                                   static_cast<int32_t>(g.count() % 3));
  if (!m.prompt.top_offsets.empty())
    g.set(m.prompt.top_tokens, static_cast<size_t>(m.prompt.top_offsets.back()));
  g.set(m.prompt.top_logprobs, m.prompt.top_tokens.size());
  if (g.number<bool>()) g.set(m.drafted, m.token_offsets.size() - 1);
  if (g.number<bool>()) return;
  g.set(m.logprobs, m.tokens.size());
  m.top_offsets = {0};
  for (size_t i = 0; i < m.tokens.size(); ++i)
    m.top_offsets.push_back(m.top_offsets.back() + static_cast<int32_t>(g.count() % 3));
  g.set(m.top_tokens, static_cast<size_t>(m.top_offsets.back()));
  g.set(m.top_logprobs, m.top_tokens.size());
}
void fill(Generator& g, Heartbeat& m) { g.all(m.last_step, m.counter); }
void fill(Generator& g, Shutdown& m) { g.all(m.reason); }
void fill(Generator& g, TakeRole& m) { m.role = static_cast<GroupRole>(g.count() % 3); }
void fill(Generator& g, Failed& m) { g.all(m.step, m.message, m.configuration); }
void fill(Generator& g, Grammar& m) { g.all(m.request, m.source); }
void fill(Generator& g, GrammarReady& m) { g.all(m.request); }
void fill(Generator& g, Position& m) { g.all(m.last_step, m.launches, m.counts_launches); }
void fill(Generator& g, LoadAdapter& m) { g.all(m.id, m.name, m.digest); }
void fill(Generator& g, AdapterLoaded& m) { g.all(m.id, m.error); }
void fill(Generator& g, UnloadAdapter& m) { g.all(m.id); }
void fill(Generator& g, RankAddress& m) { g.all(m.memory, m.address, m.key); }
void fill(Generator& g, Peers& m) {
  m.ranks.resize(g.count() % 4);
  for (auto& rank : m.ranks) fill(g, rank);
}
void fill(Generator& g, KvStates& m) {
  g.all(m.num_layers, m.num_blocks);
  m.parts.resize(g.count() % 3);
  for (auto& part : m.parts) g.all(part.name, part.first_unit, part.units, part.unit_bytes);
}
void fill(Generator& g, KvExport& m) {
  g.all(m.realm, m.pid, m.process_start, m.regions, m.layer_flags);
  m.pieces.resize(g.count() % 3);
  for (auto& piece : m.pieces) {
    g.all(piece.address, piece.bytes, piece.descriptor, piece.words);
    piece.words.resize(piece.words.size() % (kMaxKvPieceWords + 1));
  }
  fill(g, m.tcp);
  g.all(m.ucx.worker, m.ucx.regions);
  m.ucx.memory.resize(g.count() % 3);
  for (auto& memory : m.ucx.memory) g.all(memory.address, memory.bytes, memory.key);
  m.states.resize(g.count() % 3);
  for (auto& states : m.states) fill(g, states);
}
void fill(Generator& g, KvPeers& m) {
  g.all(m.group, m.epoch);
  m.ranks.resize(g.count() % 3);
  for (auto& rank : m.ranks) fill(g, rank);
}
void fill(Generator& g, PullBlocks& m) {
  g.all(m.id, m.group, m.epoch, m.step);
  m.blocks.resize(g.count() % 3);
  for (auto& blocks : m.blocks) {
    g.all(blocks.from);
    g.set(blocks.to, blocks.from.size());
  }
}
void fill(Generator& g, CancelPull& m) { g.all(m.id); }
void fill(Generator& g, Pulled& m) { g.all(m.id, m.bytes, m.early_bytes, m.ended, m.error); }

template <size_t I = 0>
Message make(size_t type, Generator& g) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (type != I) return make<I + 1>(type, g);
    Message message;
    fill(g, message.emplace<I>());
    return message;
  } else {
    throw std::out_of_range("message type");
  }
}

}  // namespace

Message random_message(size_t type, std::mt19937_64& random, size_t size) {
  Generator generator(random, size);
  return make(type, generator);
}

std::vector<std::byte> frame_of(const Message& message, FrameInfo info) {
  std::vector<std::byte> frame;
  encode_frame(message, info, frame);
  return frame;
}

Step decode_step(int rows) {
  Step step;
  step.step = 1000;
  step.blocks.resize(1);
  Run& run = step.runs.emplace_back();
  run.mode = ForwardMode::kDecode;
  for (int i = 0; i < rows; ++i) {
    run.rows.slot.push_back(i);
    run.rows.num_tokens.push_back(1);
    run.rows.computed.push_back(100 + i);
    run.rows.flags.push_back(kSamples);
    run.rows.token_ids.push_back(kTokenOnDevice);
    if (i % 16 == 0) {
      step.blocks.front().slot.push_back(i);
      step.blocks.front().index.push_back(7);
      step.blocks.front().block.push_back(1000 + i);
    }
  }
  return step;
}

}  // namespace refrain::ipc
