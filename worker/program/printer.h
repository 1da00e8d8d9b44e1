#pragma once
// The text of a Program, stable and line by line, so that tests and reviews can read it.

#include <string>

#include "worker/program/program.h"

namespace refrain::worker {

std::string print(const Program& program);
std::string print(const Program& program, const Op& op);
// What all ranks of a group share of an op: no sizes, and nothing that follows from the rank.
std::string print_shared(const Program& program, const Op& op);

}  // namespace refrain::worker
