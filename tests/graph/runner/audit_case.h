#pragma once
// Sessions whose steps can be audited, for the tests of the audit.

#include "tests/graph/runner/session.h"

namespace refrain::tests {

inline SessionOptions audited(const std::string& mode) {
  SessionOptions options = with_mode(mode);
  options.config.audit = true;
  options.keep_logits = false;
  return options;
}

inline SessionOptions audited_rank_of_two(int rank, const std::string& token) {
  SessionOptions options = audited("FULL_AND_PIECEWISE");
  options.config.tensor_parallel_size = 2;
  options.rank = rank;
  options.token = token;
  return options;
}

inline ipc::StepResult run_audited(Session& session, const std::vector<Row>& rows) {
  ipc::Step step = session.make_step(rows);
  step.audit = true;
  session.runner().submit(step);
  return session.runner().wait();
}

}  // namespace refrain::tests
