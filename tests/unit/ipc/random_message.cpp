#include "tests/unit/ipc/random_message.h"

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
        m.block_size, m.dtype, m.kv_cache_dtype, m.attention_backend, m.kv_cache_memory_bytes,
        m.gpu_memory_utilization, m.num_gpu_blocks_override, m.load_dummy, m.seed, m.enforce_eager,
        m.cudagraph_mode, m.has_capture_sizes, m.cudagraph_capture_sizes,
        m.max_cudagraph_capture_size, m.num_speculative_tokens, m.has_splitting_ops,
        m.splitting_ops, m.disable_padding, m.max_padding_ratio, m.debug_cudagraph,
        m.collective_timeout_ms, m.disable_custom_all_reduce, m.audit);
}
void fill(Generator& g, Hello& m) {
  g.all(m.protocol_version, m.build_id, m.model_digest, m.rank, m.tensor_parallel_size, m.pid,
        m.process_start, m.realm, m.host, m.device, m.held_group, m.last_epoch);
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
  g.all(m.num_kv_blocks, m.kv_block_bytes, m.weight_bytes, m.seconds, m.kept);
}
void fill(Generator& g, InitCache& m) { g.all(m.num_kv_blocks); }
void fill(Generator& g, ManifestEntry& m) {
  g.all(m.mode, m.num_tokens, m.num_reqs, m.uniform, m.pieces, m.nodes, m.bytes, m.capture_ms,
        m.digest, m.launch_digest);
}
void fill(Generator& g, Ready& m) {
  g.all(m.cudagraph_mode, m.uniform_query_len, m.capture_sizes, m.arena_bytes, m.warnings,
        m.memory_tags, m.num_kv_blocks);
  m.manifest.resize(g.count());
  for (auto& entry : m.manifest) fill(g, entry);
  g.set(m.memory_bytes, m.memory_tags.size());
}
void fill(Generator& g, SlotSetup& m) {
  g.all(m.slot, m.temperature, m.top_p, m.min_p, m.repetition_penalty, m.presence_penalty,
        m.frequency_penalty, m.top_k, m.num_logprobs, m.prompt_len, m.seed, m.bias_tokens,
        m.has_allowed_tokens, m.allowed_tokens, m.allowed_mask, m.min_tokens, m.end_tokens);
  g.set(m.bias_values, m.bias_tokens.size());
}
void fill(Generator& g, Step& m) {
  g.all(m.step, m.cascade, m.allowed_modes, m.row_slot, m.block_slot, m.audit);
  g.choose(m.mode, ForwardMode::kDllmExtend);
  const size_t rows = m.row_slot.size();
  m.row_num_tokens.resize(rows);
  size_t tokens = 0;
  for (int32_t& count : m.row_num_tokens) {
    count = static_cast<int32_t>(g.count() % 5);
    tokens += static_cast<size_t>(count);
  }
  g.set(m.row_computed, rows);
  g.set(m.row_flags, rows);
  g.set(m.token_ids, tokens);
  g.set(m.block_index, m.block_slot.size());
  g.set(m.block_id, m.block_slot.size());
  m.setups.resize(g.count() % 4);
  for (auto& setup : m.setups) fill(g, setup);
}
void fill(Generator& g, StepResult& m) {
  g.all(m.step, m.rank, m.key_tokens, m.key_reqs, m.key_uniform, m.num_tokens, m.device_ms,
        m.tokens, m.audit.audited, m.audit.differences, m.audit.worst_logit, m.audit.worst_kv,
        m.audit.first);
  g.choose(m.mode, RuntimeMode::kFull);
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
void fill(Generator& g, Failed& m) { g.all(m.step, m.message, m.configuration); }
void fill(Generator& g, Position& m) { g.all(m.last_step, m.launches, m.counts_launches); }

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
  step.mode = ForwardMode::kDecode;
  for (int i = 0; i < rows; ++i) {
    step.row_slot.push_back(i);
    step.row_num_tokens.push_back(1);
    step.row_computed.push_back(100 + i);
    step.row_flags.push_back(kSamples);
    step.token_ids.push_back(kTokenOnDevice);
    if (i % 16 == 0) {
      step.block_slot.push_back(i);
      step.block_index.push_back(7);
      step.block_id.push_back(1000 + i);
    }
  }
  return step;
}

}  // namespace refrain::ipc
