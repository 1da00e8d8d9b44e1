#pragma once
// The text of a Program, stable and line by line, so that tests and reviews can read it.

#include <string>

#include "worker/program/program.h"

namespace refrain::worker {

std::string print(const Program& program);
std::string print(const Program& program, const Op& op);

}  // namespace refrain::worker
