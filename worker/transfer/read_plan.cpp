#include "worker/transfer/read_plan.h"

#include <algorithm>

namespace refrain::worker {
namespace {

// A run of units of a part that one rank of the other group has.
struct Span {
  size_t rank = 0;
  int64_t from = 0, to = 0, bytes = 0;  // offsets in its block and in the own one
};

int64_t offset_of(const ipc::KvStates& states, size_t part) {
  int64_t offset = 0;
  for (size_t i = 0; i < part; ++i) offset += states.parts[i].units * states.parts[i].unit_bytes;
  return offset;
}

Status check(const ipc::KvStates& own, const ipc::KvStates& other, size_t group, size_t rank) {
  bool equal = own.num_layers == other.num_layers && own.parts.size() == other.parts.size();
  for (size_t i = 0; equal && i < own.parts.size(); ++i)
    equal = own.parts[i].name == other.parts[i].name &&
            own.parts[i].unit_bytes == other.parts[i].unit_bytes;
  if (equal) return {};
  return fail(ErrorCode::kInvalidArgument,
              "state group {} of rank {} of the other group has other layers or parts", group,
              rank);
}

// The units of one part, cut where another rank has the next ones.
Status add_spans(const std::vector<ipc::KvExport>& from, size_t group, size_t part,
                 const ipc::KvStates& own, int own_rank, std::vector<Span>& spans) {
  const ipc::KvPart& wanted = own.parts[part];
  const int64_t end = wanted.first_unit + wanted.units;
  for (int64_t unit = wanted.first_unit; unit < end;) {
    Span span;
    int64_t count = 0;
    for (size_t i = 0; i < from.size() && count == 0; ++i) {
      const size_t rank = (static_cast<size_t>(own_rank) + i) % from.size();
      const ipc::KvStates& states = from[rank].states[group];
      const ipc::KvPart& there = states.parts[part];
      if (unit < there.first_unit || unit >= there.first_unit + there.units) continue;
      count = std::min(end, there.first_unit + there.units) - unit;
      span = {rank, offset_of(states, part) + (unit - there.first_unit) * there.unit_bytes,
              offset_of(own, part) + (unit - wanted.first_unit) * wanted.unit_bytes,
              count * wanted.unit_bytes};
    }
    if (count == 0)
      return fail(ErrorCode::kInvalidArgument, "no rank of the other group has unit {} of {}", unit,
                  wanted.name);
    spans.push_back(span);
    unit += count;
  }
  return {};
}

void add(std::vector<Read>& reads, const Read& read) {
  if (!reads.empty()) {
    Read& last = reads.back();
    if (last.region == read.region && last.offset + last.bytes == read.offset &&
        last.to + last.bytes == read.to) {
      last.bytes += read.bytes;
      return;
    }
  }
  reads.push_back(read);
}

}  // namespace

Result<std::vector<std::vector<Read>>> plan_reads(const KvMemory& own, int own_rank,
                                                  const std::vector<ipc::KvExport>& from,
                                                  const std::vector<ipc::KvBlocks>& blocks) {
  std::vector<std::vector<Read>> reads(from.size());
  if (blocks.size() != own.states.size())
    return fail(ErrorCode::kInvalidArgument, "blocks of {} state groups, there are {}",
                blocks.size(), own.states.size());
  for (size_t rank = 0; rank < from.size(); ++rank)
    if (from[rank].states.size() != own.states.size())
      return fail(ErrorCode::kInvalidArgument,
                  "rank {} of the other group has {} state groups, this one {}", rank,
                  from[rank].states.size(), own.states.size());
  for (size_t group = 0; group < blocks.size(); ++group) {
    const ipc::KvStates& states = own.states[group];
    int64_t least = 0;  // blocks that every rank of the other group has
    for (size_t rank = 0; rank < from.size(); ++rank) {
      REFRAIN_RETURN_IF_ERROR(check(states, from[rank].states[group], group, rank));
      const int64_t there = from[rank].states[group].num_blocks;
      least = rank == 0 ? there : std::min(least, there);
    }
    for (size_t i = 0; i < blocks[group].from.size(); ++i) {
      const BlockId block = blocks[group].from[i], to = blocks[group].to[i];
      if (block <= kReservedBlock || block >= least || to <= kReservedBlock ||
          to >= states.num_blocks)
        return fail(ErrorCode::kInvalidArgument,
                    "block {} to {}: there are {} blocks of state group {} there and {} here",
                    block, to, least, group, states.num_blocks);
    }
    std::vector<Span> spans;
    for (size_t part = 0; part < states.parts.size(); ++part)
      REFRAIN_RETURN_IF_ERROR(add_spans(from, group, part, states, own_rank, spans));
    const size_t first = own.first_region(group);
    for (size_t region = first; region < first + static_cast<size_t>(states.num_layers); ++region) {
      for (size_t i = 0; i < blocks[group].from.size(); ++i) {
        for (const Span& span : spans) {
          const int64_t there = from[span.rank].states[group].block_bytes();
          add(reads[span.rank],
              {region, static_cast<uint64_t>(blocks[group].from[i] * there + span.from),
               own.regions[region] + blocks[group].to[i] * states.block_bytes() + span.to,
               static_cast<size_t>(span.bytes)});
        }
      }
    }
  }
  return reads;
}

std::vector<Read> cut_reads(const std::vector<Read>& reads, size_t most_bytes) {
  std::vector<Read> cut;
  for (const Read& read : reads) {
    for (size_t at = 0; at < read.bytes; at += most_bytes)
      cut.push_back(
          {read.region, read.offset + at, read.to + at, std::min(most_bytes, read.bytes - at)});
  }
  return cut;
}

}  // namespace refrain::worker
