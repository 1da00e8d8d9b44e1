// The flag of a layer is an op of the Program: set in every mode behind the layer's keys and
// values, so that a reader beside the device takes them while the step still runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "kernels/core/layer_flag.h"
#include "kernels/host/launcher.h"
#include "tests/graph/runner/late_device.h"
#include "tests/graph/runner/session.h"
#include "worker/graph/interpreter.h"
#include "worker/program/printer.h"
#include "worker/transfer/transfer_thread.h"

namespace refrain::tests {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

constexpr int kChunk = 48;

// Graphs up to a chunk of a prompt.
SessionOptions publishing(const std::string& mode) {
  SessionOptions options = with_mode(mode);
  options.config.publish_layers = true;
  options.config.cudagraph_capture_sizes = {1, 8, 16, kChunk};
  return options;
}

std::vector<uint64_t> flags(Session& session) {
  const worker::KvMemory memory = session.runner().kv_memory();
  return session.read(reinterpret_cast<const uint64_t*>(memory.flags), memory.regions.size());
}

class LayerFlags : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerFlags, AreThoseOfTheLastStepInEveryMode) {
  const auto session = started(publishing(GetParam()));
  EXPECT_THAT(flags(*session), SizeIs(kLayers));
  for (const uint64_t flag : flags(*session))
    EXPECT_FALSE(kernels::has_passed(flag, 1)) << "no step has run, captures are none";
  const bool full = std::string(GetParam()) == "FULL";
  for (uint32_t step = 1; step <= 4; ++step) {
    const int tokens = step == 2 ? kChunk : 3 + static_cast<int>(step);
    const auto result = session->run({{0, prompt(tokens, static_cast<int>(step)), 0}});
    EXPECT_TRUE(!full || result.mode == ipc::RuntimeMode::kFull) << "a prompt of " << tokens;
    EXPECT_THAT(flags(*session), Each(kernels::layer_flag(step)));
  }
}

TEST_P(LayerFlags, AreOfEachOfTwoStepsInFlight) {
  SessionOptions options = publishing(GetParam());
  options.wrap_device = make_late_device;
  if (options.device != "host") GTEST_SKIP() << "this device is late by itself";
  const auto session = started(options);
  worker::ProgramRunner& runner = session->runner();
  const auto now = [&, memory = runner.kv_memory()] {  // a read on a stream would let steps run
    const auto* words = reinterpret_cast<const uint64_t*>(memory.flags);
    return std::vector<uint64_t>(words, words + memory.regions.size());
  };
  const ipc::Step first = session->make_step({{0, prompt(5, 0), 0}});
  const ipc::Step second = session->make_step({{1, prompt(kChunk, 1), 0}});
  const std::vector<uint64_t> before = now();
  runner.submit(first);
  runner.submit(second);
  EXPECT_EQ(now(), before);
  runner.wait();
  EXPECT_THAT(now(), Each(kernels::layer_flag(1)));
  runner.wait();
  EXPECT_THAT(now(), Each(kernels::layer_flag(2)));
}

// Another coordinator numbers its steps anew.
TEST_P(LayerFlags, AreNoneAgainWhenStepsAreForgotten) {
  const auto session = started(publishing(GetParam()));
  session->run({{0, prompt(9, 0), 0}});
  EXPECT_THAT(flags(*session), Each(kernels::layer_flag(1)));
  session->runner().forget_steps();
  EXPECT_THAT(flags(*session), Each(uint64_t{0}));
  const auto plain = started(with_mode(GetParam()));
  EXPECT_EQ(plain->runner().kv_memory().flags, nullptr);
  plain->runner().forget_steps();
}

INSTANTIATE_TEST_SUITE_P(Modes, LayerFlags,
                         ::testing::Values("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"));

TEST(LayerFlag, IsNoneWhenItsHalvesDisagreeAndWrapsAround) {
  using kernels::has_passed, kernels::layer_flag;
  EXPECT_FALSE(has_passed(0, 0));
  EXPECT_FALSE(has_passed(0, 1));
  EXPECT_TRUE(has_passed(layer_flag(7), 7));
  EXPECT_TRUE(has_passed(layer_flag(8), 7));
  EXPECT_FALSE(has_passed(layer_flag(6), 7));
  EXPECT_TRUE(has_passed(layer_flag(2), 0xfffffffe));
  EXPECT_FALSE(has_passed(layer_flag(0xfffffffe), 2));
  // Bytes of two numbers, as a copy that is no single load may find them.
  const uint64_t before = layer_flag(0x00ff), after = layer_flag(0x0100);
  for (int bytes = 1; bytes < 8; ++bytes) {
    const uint64_t low = (uint64_t{1} << 8 * bytes) - 1;
    const uint64_t torn = (before & low) | (after & ~low);
    EXPECT_FALSE(has_passed(torn, 0x0101)) << bytes << " old bytes";
  }
}

// The order of ops: whatever writes a layer's blocks stands before its flag, in every lowering.
TEST(LayerFlags, StandBehindWhatWritesTheLayer) {
  const auto session = started(publishing("FULL"));
  for (const worker::Lowering* lowering : session->runner().hosted().all_lowerings()) {
    const worker::Program& program = lowering->program;
    std::map<worker::ValueId, int> published;
    for (const worker::Op& op : program.ops) {
      const bool publishes = std::string(worker::op_name(op)) == "publish_layer";
      worker::visit_operands(op, [&](worker::ValueId id, const worker::Operand&) {
        if (id == worker::kNoValue || !program.value(id).is_paged()) return;
        EXPECT_EQ(published[id], 0) << worker::print(program, op);
        if (publishes) ++published[id];
      });
    }
    EXPECT_THAT(published, SizeIs(kLayers));
  }
}

// Delays within a step, on both sides of each flag: one in eight is of milliseconds, so that a
// reader looks in between, the others are of microseconds.
void delay(uint32_t seed) {
  uint32_t x = seed * 2654435761u + 12345;
  x = (x ^ (x >> 15)) * 2246822519u;
  const uint32_t most = x % 8 == 0 ? 4000 : 100;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds((x >> 8) % most);
  while (std::chrono::steady_clock::now() < end) {
  }
}

void publish_with_delays(const kernels::PublishLayerArgs& args, const kernels::Team& team) {
  if (team.rank != 0) return;
  const uint8_t* block = args.blocks[*args.turn % kernels::kTurns];
  const uint32_t step = reinterpret_cast<const kernels::StepHeader*>(block + args.header)->step;
  const auto layer = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(args.flag) / 8);
  delay(step * 64 + layer);
  std::atomic_ref(*args.flag).store(kernels::layer_flag(step), std::memory_order_release);
  delay(step * 64 + layer + 32);
}

std::unique_ptr<worker::Device> make_delaying_device(std::unique_ptr<worker::Device> host) {
  kernels::KernelTable table = host->kernels();
  table.publish_layer = [](kernels::StreamRef stream, const kernels::PublishLayerArgs& args) {
    kernels::launch<&publish_with_delays>(stream, args, "publish_layer", true);
  };
  return make_late_device_with(std::move(host), table);
}

// The reader's rank: its own blocks, and a thread that pulls into them.
class Reader {
 public:
  Reader(worker::Device& device, const worker::KvMemory& like, const char* backend)
      : memory_(like) {
    memory_.flags = nullptr;
    for (size_t region = 0; region < like.regions.size(); ++region)
      memory_.regions[region] =
          bytes_.emplace_back(worker::region_sizes(like.states, false).front()).data();
    owner_ = start(device, like, backend);
    reader_ = start(device, memory_, backend);
    owner_->post(ipc::KvPeers{2, 1, {reader_->own()}});
    reader_->post(ipc::KvPeers{1, 1, {owner_->own()}});
  }
  void pull(ipc::PullBlocks order) { reader_->post(std::move(order)); }
  ipc::Pulled wait(TransferId id) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ended_.contains(id); });
    return there ? ended_[id] : ipc::Pulled{id, 0, true, "it did not end"};
  }
  const worker::KvMemory& memory() const { return memory_; }

 private:
  std::unique_ptr<worker::TransferThread> start(worker::Device& device,
                                                const worker::KvMemory& memory,
                                                const char* backend) {
    worker::TransferThread::Options options;
    options.listen_on = "tcp://127.0.0.1:*";
    options.backend = backend;
    options.report = [this](const ipc::Pulled& told) {
      if (!told.ended) return;
      const std::lock_guard lock(mutex_);
      ended_[told.id] = told;
      changed_.notify_all();
    };
    options.broken = [](const std::string& why) { ADD_FAILURE() << why; };
    return *worker::TransferThread::start(device, memory, std::move(options));
  }

  worker::KvMemory memory_;
  std::deque<std::vector<std::byte>> bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<TransferId, ipc::Pulled> ended_;
  std::unique_ptr<worker::TransferThread> owner_, reader_;
};

uint64_t digest(const worker::KvMemory& memory, const std::vector<BlockId>& blocks) {
  uint64_t hash = 1469598103934665603ULL;
  const auto bytes = static_cast<size_t>(memory.states[0].block_bytes());
  for (const std::byte* region : memory.regions) {
    for (const BlockId block : blocks) {
      const std::byte* at = region + static_cast<size_t>(block) * bytes;
      for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * 1099511628211ULL;
      }
    }
  }
  return hash;
}

// How many transfers: 10,000 by REFRAIN_TRANSFERS=10000, fewer where every commit waits for it.
int num_transfers() {
  const char* given = std::getenv("REFRAIN_TRANSFERS");
  return given != nullptr ? std::atoi(given) : 1000;
}

class LayerStreaming : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

// Two steps in flight, each with the last chunk of a prompt, whose blocks are pulled from before
// the step begins on: what came is what the step left, block for block.
TEST_P(LayerStreaming, BlocksThatComeWhileAGraphWritesThemAreThoseOfItsEnd) {
  const auto [mode, backend] = GetParam();
  const bool of_memory = backend == std::string("auto");
  SessionOptions options = publishing(mode);
  if (options.device != "host") GTEST_SKIP() << "the delays are of host kernels";
#ifdef REFRAIN_TSAN  // nothing would come in time: steps have ended by then
  if (!of_memory) GTEST_SKIP() << "each word of a frame of a library's is a suppressed report";
#endif
  options.wrap_device = make_delaying_device;
  const auto session = started(options);
  worker::ProgramRunner& runner = session->runner();
  const worker::KvMemory memory = runner.kv_memory();
  Reader reader(session->device(), memory, backend);
  std::deque<std::vector<BlockId>> under_way;
  const int total = std::max(2, num_transfers() / (of_memory ? 1 : 10));
  int64_t early = 0, bytes = 0;
  // A busy machine may have no time for the reader before the end of a step.
  const int most = 50 * total;
  int begun = 0, done = 0;
  while (done < begun || done < total || (early == 0 && done < most)) {
    for (; begun < done + 2 && (begun < total || early == 0); ++begun) {
      const SlotId slot = begun % options.config.max_num_seqs;
      const ipc::Step step =
          session->make_step({{slot, prompt(1 + begun * 37 % kChunk, begun), 0}});
      const std::vector<BlockId>& blocks = step.blocks[0].block;
      reader.pull({static_cast<TransferId>(begun + 1), 1, 1, {{blocks, blocks}}, step.step});
      runner.submit(step);
      under_way.push_back(blocks);
    }
    runner.wait();
    const ipc::Pulled pulled = reader.wait(static_cast<TransferId>(++done));
    ASSERT_EQ(pulled.error, "");
    ASSERT_EQ(digest(reader.memory(), under_way.front()), digest(memory, under_way.front()))
        << "transfer " << done;
    under_way.pop_front();
    early += pulled.early_bytes;
    bytes += pulled.bytes;
  }
  EXPECT_GT(early, 0) << "nothing came before the end of its step";
  EXPECT_LT(early, bytes);
  RecordProperty("transfers", done);
  RecordProperty("early_bytes", std::to_string(early));
  RecordProperty("bytes", std::to_string(bytes));
}

INSTANTIATE_TEST_SUITE_P(Modes, LayerStreaming,
                         ::testing::Combine(::testing::Values("NONE", "PIECEWISE", "FULL"),
                                            ::testing::Values("auto", "tcp", "ucx")),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param)) + "_" + std::get<1>(of.param);
                         });

}  // namespace
}  // namespace refrain::tests
