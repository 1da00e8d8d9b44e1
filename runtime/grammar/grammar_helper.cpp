#include "runtime/grammar/grammar_helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/base/log.h"
#include "runtime/grammar/grammar.h"
#include "runtime/grammar/grammar_trial.h"

namespace refrain {
namespace {

constexpr size_t kKnownGrammars = 256;
constexpr char kGood = 'G', kBad = 'B', kLate = 'L', kBroken = 'X';  // first of an answer
// A sanitizer reserves more address space than any limit.
#if defined(REFRAIN_ASAN) || defined(REFRAIN_TSAN)
constexpr bool kLimitsMemory = false;
#else
constexpr bool kLimitsMemory = true;
#endif

struct Vocabulary {
  GrammarCompiler& compiler;
  int64_t size;
  const std::vector<TokenId>& ends;
};

int64_t address_space() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

void limit(int resource, int64_t most) {
  const rlimit value{static_cast<rlim_t>(most), static_cast<rlim_t>(most)};
  setrlimit(static_cast<__rlimit_resource>(resource), &value);
}

// What the library said of keywords that it leaves out: without time, file and line.
std::string first_warning(int fd) {
  std::string text(4096, '\0');
  const ssize_t size = pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  text = said_by_library(text, text.find(".cc:"));
  return text.substr(0, text.find('\n'));
}

// In the forked process: its answer on `fd`, then its end.
[[noreturn]] void compile_and_exit(const Vocabulary& vocabulary, const std::string& source,
                                   const GrammarLimits& limits, int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, limits.cpu_seconds);
  if (kLimitsMemory) limit(RLIMIT_AS, address_space() + limits.memory_bytes);
  alarm(static_cast<unsigned>(limits.wall_seconds));
  const int said = memfd_create("said", 0);
  dup2(said, STDERR_FILENO);
  const Status tried = try_grammar(vocabulary.compiler, source, vocabulary.size, vocabulary.ends);
  std::string answer(1, kGood);
  if (!tried) {
    answer = kBad + tried.error().message;
  } else if (const std::string warning = first_warning(said); !warning.empty()) {
    answer = kBad + warning;
  }
  answer.resize(std::min<size_t>(answer.size(), 4096));
  const bool sent = write(fd, answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
  _exit(sent ? 0 : 1);
}

// The answer for a grammar whose process ended without one.
std::string answer_of_end(int status, const GrammarLimits& limits) {
  if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL))
    return fmt::format("{}it takes more than {} s to compile and follow", kBad, limits.cpu_seconds);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    return fmt::format("{}it is not compiled and followed after {} s", kLate, limits.wall_seconds);
  return fmt::format("{}it is too large or too deep to compile and follow within {} MiB", kBad,
                     limits.memory_bytes >> 20);
}

// One grammar in a process of its own; `answers` is a pipe.
std::string compile_apart(const Vocabulary& vocabulary, const std::string& source,
                          const GrammarLimits& limits) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return kBroken + std::string(strerror(errno));
  const pid_t pid = fork();
  if (pid < 0) {
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return kBroken + std::string(strerror(errno));
  }
  if (pid == 0) compile_and_exit(vocabulary, source, limits, pipe_ends[1]);
  close(pipe_ends[1]);
  std::string answer(4096, '\0');
  const ssize_t size = read(pipe_ends[0], answer.data(), answer.size());
  close(pipe_ends[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0 && size > 0;
  if (!well) return answer_of_end(status, limits);
  answer.resize(static_cast<size_t>(size));
  return answer;
}

std::string joined(const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

std::vector<TokenId> split_ids(const std::string& text) {
  std::vector<TokenId> ids;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) ids.push_back(std::stoi(word));
  return ids;
}

}  // namespace

// fd, model directory, vocabulary, end tokens, CPU s, wall s, bytes
int run_grammar_helper(const std::vector<std::string>& arguments) {
  if (arguments.size() != 7) return kExitConfig;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int socket = std::stoi(arguments[0]);
  auto tokenizer = text::Tokenizer::load(arguments[1]);
  if (!tokenizer) return kExitConfig;
  const int64_t vocab_size = std::stoll(arguments[2]);
  const std::vector<TokenId> ends = split_ids(arguments[3]);
  auto compiler = GrammarCompiler::create(*tokenizer, vocab_size, ends);
  if (!compiler) return kExitTryAgain;
  const Vocabulary vocabulary{*compiler, vocab_size, ends};
  const GrammarLimits limits{std::stoll(arguments[4]), std::stoll(arguments[5]),
                             std::stoll(arguments[6])};
  std::string source(kMaxGrammarBytes + 64, '\0');
  while (true) {
    const ssize_t size = recv(socket, source.data(), source.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return kExitOk;
    const std::string answer =
        compile_apart(vocabulary, source.substr(0, static_cast<size_t>(size)), limits);
    if (send(socket, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) return kExitOk;
  }
}

GrammarHelper::~GrammarHelper() { stop(); }

void GrammarHelper::stop() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  process_.reset();
}

Status GrammarHelper::start() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(ErrorCode::kUnavailable, "no socket for the grammar helper: {}", strerror(errno));
  const GrammarLimits& limits = options_.limits;
  auto process = ChildProcess::spawn(
      {program_, kGrammarHelperWord, std::to_string(ends[1]), options_.model_directory.string(),
       std::to_string(options_.vocab_size), joined(options_.end_tokens),
       std::to_string(limits.cpu_seconds), std::to_string(limits.wall_seconds),
       std::to_string(limits.memory_bytes)},
      {ends[1]});
  close(ends[1]);
  socket_ = ends[0];
  if (!process) {
    stop();
    return fail(ErrorCode::kUnavailable, "the grammar helper: {}", process.error().message);
  }
  process_ = std::move(*process);
  return {};
}

Status GrammarHelper::ask(const std::string& source) {
  const auto say = [&] { return send(socket_, source.data(), source.size(), MSG_NOSIGNAL); };
  if (socket_ < 0) REFRAIN_RETURN_IF_ERROR(start());
  std::string answer(4096, '\0');
  ssize_t size = say();
  if (size < 0) {  // it has died since the last one
    stop();
    REFRAIN_RETURN_IF_ERROR(start());
    size = say();
  }
  // Beyond the limit the helper itself has died or hangs; it loads the vocabulary at first.
  const int patience = static_cast<int>(options_.limits.wall_seconds + 20) * 1000;
  pollfd ready{socket_, POLLIN, 0};
  if (size >= 0 && poll(&ready, 1, patience) == 1)
    size = recv(socket_, answer.data(), answer.size(), 0);
  else
    size = -1;
  if (size <= 0) {
    stop();
    return fail(ErrorCode::kUnavailable, "the grammar helper has ended; try again");
  }
  answer.resize(static_cast<size_t>(size));
  if (answer[0] == kGood) return {};
  const std::string why = answer.substr(1);
  if (answer[0] == kBroken) return fail(ErrorCode::kUnavailable, "the grammar helper: {}", why);
  if (answer[0] == kBad) refuse(source, why);
  return fail(ErrorCode::kInvalidArgument, "{}", why);
}

bool GrammarHelper::knows(const std::string& source) {
  const std::lock_guard lock(known_mutex_);
  const auto at = known_at_.find(source);
  if (at == known_at_.end()) return false;
  known_.splice(known_.begin(), known_, at->second);
  return true;
}

void GrammarHelper::refuse(const std::string& source, const std::string& why) {
  const std::lock_guard lock(known_mutex_);
  const auto at = known_at_.find(source);
  if (at != known_at_.end()) {
    const auto known = at->second;  // holds the key
    known_at_.erase(at);
    known_.erase(known);
  }
  for (const auto& [bad, _] : bad_)
    if (bad == source) return;
  bad_.emplace_back(source, why);
  if (bad_.size() > kKnownGrammars) bad_.pop_front();
}

Status GrammarHelper::refused(const std::string& source) {
  const std::lock_guard lock(known_mutex_);
  for (const auto& [bad, why] : bad_)
    if (bad == source) return fail(ErrorCode::kInvalidArgument, "{}", why);
  return {};
}

Status GrammarHelper::check(const std::string& source) {
  REFRAIN_RETURN_IF_ERROR(refused(source));
  {
    const std::lock_guard lock(helper_mutex_);
    if (knows(source)) return {};
    REFRAIN_RETURN_IF_ERROR(grammar_library());
    REFRAIN_RETURN_IF_ERROR(ask(source));
  }
  const std::lock_guard lock(known_mutex_);
  known_.push_front(source);
  known_at_.emplace(known_.front(), known_.begin());
  if (known_.size() > kKnownGrammars) {
    known_at_.erase(known_.back());
    known_.pop_back();
  }
  return {};
}

}  // namespace refrain
