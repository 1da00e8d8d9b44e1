#include "runtime/base/child_process.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/base/check.h"

extern char** environ;

namespace refrain {
namespace {

// For a call that changes none of the words, and ends them with null.
std::vector<char*> pointers(const std::vector<std::string>& argv) {
  REFRAIN_CHECK(!argv.empty(), "argv needs a program");
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  return words;
}

}  // namespace

Error become(const std::vector<std::string>& argv) {
  const std::vector<char*> words = pointers(argv);
  ::execv(words[0], words.data());
  return {
      ErrorCode::kNotFound, fmt::format("cannot start {}: {}", argv[0], std::strerror(errno)), {}};
}

Result<ChildProcess> ChildProcess::spawn(const std::vector<std::string>& argv,
                                         const std::vector<int>& pass) {
  const std::vector<char*> words = pointers(argv);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Signals of the terminal go to the parent alone, which decides; masks and handlers start fresh.
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) sigaddset(&defaults, number);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  // Onto itself: clears close-on-exec in the child alone.
  for (const int fd : pass)
    if (fd >= 0) posix_spawn_file_actions_adddup2(&files, fd, fd);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, words[0], &files, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return fail(ErrorCode::kUnavailable, "cannot start {}: {}", argv[0], std::strerror(error));
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, 0);
  }
  return *this;
}

ChildProcess::~ChildProcess() { end(); }

void ChildProcess::end() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  reap();
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

ChildProcess::End ChildProcess::reap() {
  REFRAIN_CHECK(pid_ > 0, "no process to wait for");
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) {
    REFRAIN_CHECK(errno == EINTR, "waitpid of {} failed: {}", pid_, std::strerror(errno));
  }
  pid_ = 0;
  if (WIFSIGNALED(status)) return {WTERMSIG(status), 0};
  return {0, WEXITSTATUS(status)};
}

std::string describe(const ChildProcess::End& end) {
  return end.signal != 0 ? fmt::format("signal {} ({})", end.signal, ::strsignal(end.signal))
                         : fmt::format("exit code {}", end.code);
}

namespace {

// Of the shared library that this code is part of; empty in a program.
std::filesystem::path own_library() {
  Dl_info info{};
  link_map* map = nullptr;
  const int found = ::dladdr1(reinterpret_cast<void*>(&sibling_program), &info,
                              reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP);
  REFRAIN_CHECK(found != 0 && map != nullptr, "dladdr does not know this code");
  return map->l_name;  // the program itself has no name there
}

}  // namespace

std::string sibling_program(const std::string& name) {
  std::error_code error;
  if (const auto library = own_library(); !library.empty()) {
    const auto base = std::filesystem::canonical(library).parent_path().parent_path();
    const auto installed = base / "libexec/refrain" / name;
    return std::filesystem::exists(installed, error) ? installed : base / "bin" / name;
  }
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  REFRAIN_CHECK(!error, "cannot read /proc/self/exe: {}", error.message());
  return (self.parent_path() / name).string();
}

}  // namespace refrain
