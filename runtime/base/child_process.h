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
  // argv[0] is the program's path. Standard streams are inherited, and the descriptors of `pass`
  // (-1: none) under the same numbers.
  static Result<ChildProcess> spawn(const std::vector<std::string>& argv,
                                    const std::vector<int>& pass = {});
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  void signal(int number) const;
  // Collects the end of a process, waiting for it.
  struct End {
    int signal = 0;  // that ended it; 0: it exited
    int code = 0;    // else its exit code
  };
  End reap();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  void end();
  pid_t pid_ = 0;
};

std::string describe(const ChildProcess::End& end);  // "exit code 70", "signal 9 (Killed)"

// This process becomes the program argv[0]. Returns only if it cannot.
Error become(const std::vector<std::string>& argv);

// Path of a program of the same build: beside this executable; for the library in libexec/refrain
// or bin beside its folder.
std::string sibling_program(const std::string& name);

}  // namespace refrain
