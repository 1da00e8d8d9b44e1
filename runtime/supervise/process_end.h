#pragma once
// What the end of a process says to the one that started it.

#include "runtime/base/child_process.h"

namespace refrain {

// One of the four documented ones. A signal that it did not expect is a fault inside.
int exit_code_of(const ChildProcess::End& end);
// By our own signal, if it came before the program could handle it, when nothing was accepted yet.
bool ended_as_told(const ChildProcess::End& end);
// Of this program, when what ended so did so too often: faults that the process found in itself
// come back, a signal (out of memory, an operator) may not.
int give_up_code(const ChildProcess::End& end);

}  // namespace refrain
