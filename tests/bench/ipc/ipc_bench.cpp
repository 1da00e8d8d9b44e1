// ipc_bench [--json]: what a step costs on the wire. Encoding and decoding of a decode step beside
// a bare copy and a bare checksum of its bytes, and the round trip of a step through ZeroMQ.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/crc32c.h"
#include "ipc/shm/flight_ring.h"
#include "ipc/transport/curve.h"
#include "ipc/transport/endpoint.h"
#include "runtime/actor/io_context.h"
#include "runtime/base/json.h"

namespace refrain::ipc {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Row {
  std::string name;
  size_t bytes;
  int runs;
  double min, median, p99;  // nanoseconds
  double limit;             // nanoseconds; 0: none named
  std::string limit_source;
};

Row summarise(std::string name, size_t bytes, std::vector<double> samples, double limit,
              std::string limit_source) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double q) {
    return samples[static_cast<size_t>(q * static_cast<double>(samples.size() - 1))];
  };
  return {std::move(name), bytes, static_cast<int>(samples.size()), at(0), at(.5),
          at(.99),         limit, std::move(limit_source)};
}

// Each sample is the mean over 200 calls.
std::vector<double> time_calls(const std::function<void()>& call) {
  constexpr int kCalls = 200;
  std::vector<double> samples;
  for (int i = 0; i < 300; ++i) {
    const auto start = SteadyClock::now();
    for (int j = 0; j < kCalls; ++j) call();
    const std::chrono::duration<double, std::nano> took = SteadyClock::now() - start;
    if (i >= 20) samples.push_back(took.count() / kCalls);
  }
  return samples;
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
    if (i % 16 == 0) {  // a block a row every block_size steps
      step.blocks[0].slot.push_back(i);
      step.blocks[0].index.push_back(7);
      step.blocks[0].block.push_back(1000 + i);
    }
  }
  return step;
}

volatile uint64_t sink = 0;

void add_codec_rows(std::vector<Row>& rows, int requests) {
  const Message message = decode_step(requests);
  std::vector<std::byte> frame;
  encode_frame(message, {1, 1}, frame);
  std::vector<std::byte> copy(frame.size());
  const auto copied = summarise("memcpy", frame.size(), time_calls([&] {
                                  std::memcpy(copy.data(), frame.data(), frame.size());
                                  sink = sink + static_cast<uint64_t>(copy[frame.size() / 2]);
                                }),
                                0, "");
  const std::string step = "step_" + std::to_string(requests);
  rows.push_back(copied);
  rows.push_back(summarise("crc32c", frame.size(), time_calls([&] { sink = sink + crc32c(frame); }),
                           copied.median, "memcpy of the frame"));
  rows.push_back(summarise("encode_" + step, frame.size(), time_calls([&] {
                             encode_frame(message, {1, 1}, frame);
                           }),
                           1000, "half of 2 us for both"));
  rows.push_back(summarise("decode_" + step, frame.size(),
                           time_calls([&] { sink = sink + decode_frame(frame)->message.index(); }),
                           1000, "half of 2 us for both"));
}

// As the device thread does it: with the time of the record.
void add_flight_row(std::vector<Row>& rows) {
  const auto memory = FlightRing::create();
  auto ring = FlightRing::map(memory->get());
  FlightRecord record;
  rows.push_back(summarise("flight_record", sizeof(FlightRecord), time_calls([&] {
                             record.time_ns = static_cast<uint64_t>(
                                 SteadyClock::now().time_since_epoch().count());
                             ++record.step;
                             ring->write(record);
                           }),
                           100, "three a step, a thousandth of 0.3 ms"));
}

void add_round_trip(std::vector<Row>& rows, const std::string& name, const std::string& address,
                    const CurveOptions& server_keys, const CurveOptions& client_keys) {
  constexpr int kRounds = 5'000;
  IoContext server_io;
  IoContext client_io;
  EndpointOptions options;
  options.address = address;
  options.identity = "rank-0";
  options.curve = server_keys;
  auto server = make_zmq_server(server_io, options);
  if (!server) throw std::runtime_error(server.error().message);
  options.address = (*server)->address();
  options.curve = client_keys;
  auto client = make_zmq_client(client_io, options);
  if (!client) throw std::runtime_error(client.error().message);

  std::vector<std::byte> step;
  encode_frame(decode_step(256), {1, 1}, step);
  std::vector<std::byte> answer;
  encode_frame(StepResult{}, {1, 1}, answer);
  std::vector<double> samples;
  auto sent = SteadyClock::now();
  (*server)->start([&](const PeerId& from, std::span<const std::byte>) {
    const auto now = SteadyClock::now();
    samples.push_back(std::chrono::duration<double, std::nano>(now - sent).count());
    if (samples.size() == kRounds) {
      client_io.stop();
      return server_io.stop();
    }
    sent = SteadyClock::now();
    if (auto status = (*server)->send(from, step); !status)
      throw std::runtime_error(status.error().message);
  });
  (*client)->start([&](const PeerId& from, std::span<const std::byte>) {
    if (auto status = (*client)->send(from, answer); !status)
      throw std::runtime_error(status.error().message);
  });
  if (auto status = (*client)->send({}, answer); !status)
    throw std::runtime_error(status.error().message);
  std::thread worker([&] { client_io.run(); });
  server_io.run();
  worker.join();
  samples.erase(samples.begin(), samples.begin() + 100);
  rows.push_back(summarise(name, step.size() + answer.size(), std::move(samples), 0, ""));
}

void print_table(const std::vector<Row>& rows) {
  std::printf("%-22s %8s %8s %12s %12s %12s %12s  %s\n", "case", "bytes", "runs", "min ns",
              "median ns", "p99 ns", "limit ns", "limit source");
  for (const Row& row : rows)
    std::printf("%-22s %8zu %8d %12.0f %12.0f %12.0f %12.0f  %s\n", row.name.c_str(), row.bytes,
                row.runs, row.min, row.median, row.p99, row.limit, row.limit_source.c_str());
}

void print_json(const std::vector<Row>& rows) {
  auto out = nlohmann::json::array();
  for (const Row& row : rows)
    out.push_back({{"case", row.name},
                   {"device", "host"},
                   {"bytes", row.bytes},
                   {"unit", "ns"},
                   {"runs", row.runs},
                   {"min", row.min},
                   {"median", row.median},
                   {"p99", row.p99},
                   {"achieved", row.median},
                   {"limit", row.limit},
                   {"limit_source", row.limit_source}});
  std::printf("%s\n", out.dump(2).c_str());
}

int bench(bool json) {
  std::vector<Row> rows;
  add_codec_rows(rows, 1);
  add_codec_rows(rows, 256);
  add_flight_row(rows);
  const auto path =
      std::filesystem::temp_directory_path() / ("refrain-ipc-bench-" + std::to_string(::getpid()));
  add_round_trip(rows, "zmq_ipc_round_trip", "ipc://" + path.string() + "/socket", {}, {});
  const CurveOptions bare{.key_file = {}, .allow_file = {}, .insecure_tcp = true};
  add_round_trip(rows, "zmq_tcp_round_trip", "tcp://127.0.0.1:0", bare, bare);
  const auto keys = path.string() + "-keys";
  if (auto made = add_curve_keys(keys, {"worker"}); !made)
    throw std::runtime_error(made.error().message);
  add_round_trip(rows, "zmq_curve_round_trip", "tcp://127.0.0.1:0",
                 {keys + "/coordinator.key", keys + "/coordinator.allow", false},
                 {keys + "/worker.key", keys + "/worker.allow", false});
  std::filesystem::remove_all(keys);
  json ? print_json(rows) : print_table(rows);
  return kExitOk;
}

}  // namespace
}  // namespace refrain::ipc

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "ipc_bench takes --json or nothing, not \"%s\"\n", argv[1]);
    return refrain::kExitConfig;
  }
  try {
    return refrain::ipc::bench(json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ipc_bench: %s\n", error.what());
    return refrain::kExitInternal;
  }
}
