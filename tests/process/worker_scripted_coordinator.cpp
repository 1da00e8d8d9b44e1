#include "tests/process/worker_scripted_coordinator.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "runtime/base/check.h"
#include "runtime/base/process_identity.h"

namespace refrain {

namespace {

constexpr auto kPatience = std::chrono::seconds(30);

std::string worker_program() {
  const char* build = std::getenv("REFRAIN_BUILD_DIR");
  REFRAIN_CHECK(build != nullptr, "REFRAIN_BUILD_DIR is not set: run through ctest");
  return std::string(build) + "/bin/worker";
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {worker_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  REFRAIN_CHECK(pid_ >= 0, "no process");
  if (pid_ == 0) {
    execv(argv[0], argv.data());
    _exit(127);
  }
}

WorkerProcess::~WorkerProcess() {
  if (waited_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void WorkerProcess::send_signal(int signal) const {
  REFRAIN_CHECK(kill(pid_, signal) == 0, "process {} is gone", pid_);
}

int WorkerProcess::wait() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) return -1;
    std::this_thread::yield();
  }
  waited_ = true;
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

ScriptedCoordinator::ScriptedCoordinator() {
  group_token_ = directory_.path().filename();
  address_ = "ipc://" + (directory_.path() / "coordinator").string();
  ipc::EndpointOptions options;
  options.address = address_;
  strand_ = io_.make_strand();
  auto server = ipc::make_zmq_server(io_, options, strand_);
  REFRAIN_CHECK(server.has_value(), "{}", server.error().message);
  server_ = std::move(*server);
  strand_->post([this] {
    server_->start([this](const ipc::PeerId& from, std::span<const std::byte> frame) {
      on_frame(from, frame);
    });
  });
  thread_ = std::thread([this] { io_.run(); });
}

ScriptedCoordinator::~ScriptedCoordinator() {
  strand_->post([this] {
    server_->close();
    io_.stop();
  });
  thread_.join();
  server_.reset();
  strand_.reset();
}

void ScriptedCoordinator::on_frame(const ipc::PeerId& from, std::span<const std::byte> frame) {
  auto decoded = ipc::decode_frame(frame);
  REFRAIN_CHECK(decoded.has_value(), "{}", decoded.error().message);
  const std::lock_guard lock(mutex_);
  if (const auto* hello = std::get_if<ipc::Hello>(&decoded->message)) processes_[hello->pid] = from;
  messages_[from].push_back(std::move(decoded->message));
  arrived_.notify_all();
}

std::optional<ipc::Hello> ScriptedCoordinator::meet(int rank, pid_t pid) {
  {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, kPatience, [&] { return processes_.contains(pid); })) {
      error_ = fmt::format("no hello of process {}", pid);
      return std::nullopt;
    }
    ranks_[rank] = {processes_[pid]};
  }
  return expect<ipc::Hello>(rank);
}

std::optional<ipc::Message> ScriptedCoordinator::next(int rank) {
  std::unique_lock lock(mutex_);
  auto& messages = messages_[ranks_[rank].peer];
  const auto there = [&] { return !messages.empty(); };
  if (!arrived_.wait_for(lock, kPatience, there)) {
    error_ = fmt::format("nothing from rank {}", rank);
    return std::nullopt;
  }
  std::optional<ipc::Message> message(std::move(messages.front()));
  messages.pop_front();
  return message;
}

void ScriptedCoordinator::welcome(int rank, const ipc::WorkerConfig& config, Epoch epoch) {
  {
    const std::lock_guard lock(mutex_);
    ranks_[rank].epoch = epoch;
    ranks_[rank].sequence = 0;
  }
  ipc::Welcome welcome;
  welcome.config = config;
  welcome.group_token = fmt::format("{}-{}", group_token_, epoch);
  const ProcessIdentity own = own_process();
  welcome.pid = own.pid;
  welcome.process_start = own.start;
  welcome.realm = own.realm;
  send(rank, welcome);
}

void ScriptedCoordinator::send(int rank, const ipc::Message& message) {
  ipc::FrameInfo info;
  {
    const std::lock_guard lock(mutex_);
    info = {ranks_[rank].epoch, ++ranks_[rank].sequence};
  }
  transmit(rank, message, info);
}

void ScriptedCoordinator::refuse(int rank, const std::string& reason) {
  transmit(rank, ipc::Refuse{reason}, {0, 1});
}

void ScriptedCoordinator::transmit(int rank, const ipc::Message& message, ipc::FrameInfo info) {
  std::vector<std::byte> frame;
  ipc::encode_frame(message, info, frame);
  ipc::PeerId peer;
  {
    const std::lock_guard lock(mutex_);
    peer = ranks_[rank].peer;
  }
  strand_->post([this, peer, frame = std::move(frame)] {
    const Status sent = server_->send(peer, frame);
    REFRAIN_CHECK(sent.has_value(), "{}", sent.error().message);
  });
}

}  // namespace refrain
