#pragma once
// Starting and ending child processes. Used by the supervisors on one executor; a ChildProcess that
// is destroyed while its process runs kills and reaps it, so that no ending leaves an orphan.

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace refrain {

class ChildProcess {
 public:
  // argv[0] is the program's path. Standard streams are inherited.
  static Result<ChildProcess> spawn(const std::vector<std::string>& argv);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  void signal(int number) const;
  // Collects the exit status of a process that has ended, waiting for it if it has not.
  // An exit by a signal is reported as 128 + signal, as shells do.
  int reap();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  void end();
  pid_t pid_ = 0;
};

// Path of a program of the same build: beside this executable.
std::string sibling_program(const std::string& name);

}  // namespace refrain
