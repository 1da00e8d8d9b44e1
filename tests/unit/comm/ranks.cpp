#include "tests/unit/comm/ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>

#include "runtime/base/check.h"
#include "runtime/base/unique_handle.h"

namespace refrain::worker {

namespace {

struct Child {
  pid_t pid = 0;
  UniqueFd output;
};

std::string call(const std::function<std::string(int)>& body, int rank) {
  try {
    return body(rank);
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
}

Child start(const std::function<std::string(int)>& body, int rank) {
  int ends[2];
  REFRAIN_CHECK(pipe(ends) == 0, "no pipe");
  const pid_t pid = fork();
  REFRAIN_CHECK(pid >= 0, "no process");
  if (pid == 0) {
    close(ends[0]);
    const std::string text = call(body, rank);
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  return {pid, UniqueFd(ends[0])};
}

std::string finish(Child& child, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  char block[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{child.output.get(), POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0) {
      kill(child.pid, SIGKILL);
      text += "hung";
      break;
    }
    const ssize_t count = read(child.output.get(), block, sizeof block);
    if (count <= 0) break;
    text.append(block, static_cast<size_t>(count));
  }
  int status = 0;
  REFRAIN_CHECK(waitpid(child.pid, &status, 0) == child.pid, "lost a child");
  if (WIFSIGNALED(status)) text += fmt::format("killed by signal {}", WTERMSIG(status));
  return text;
}

}  // namespace

std::vector<std::string> run_ranks(int size, const std::function<std::string(int)>& body) {
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) children.push_back(start(body, rank));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(240);
  std::vector<std::string> results;
  for (Child& child : children) results.push_back(finish(child, deadline));
  return results;
}

std::string fresh_token() {
  static std::atomic<int> count{0};
  return fmt::format("test-{}-{}", getpid(), count++);
}

std::vector<std::string> segments_of(const std::string& token) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find(token) != std::string::npos) names.push_back(name);
  }
  return names;
}

}  // namespace refrain::worker
