#pragma once
// Speculation on the host, the same on every instruction set: prompt lookup, one row a thread, and
// what is kept of the sampled tokens; what a draft model reads and has left. A look-up reads the
// request's tokens once.

#include "kernels/core/draft_args.h"
#include "kernels/core/kernel_table.h"

namespace refrain::kernels {

void launch_propose_ngram(StreamRef stream, const ProposeNgramArgs& args);
void launch_accept_drafts(StreamRef stream, const AcceptDraftsArgs& args);
void launch_propose_drafts(StreamRef stream, const ProposeDraftsArgs& args);
void launch_draft_inputs(StreamRef stream, const DraftInputsArgs& args);

}  // namespace refrain::kernels
