#include "runtime/server/cudagraph_page.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "ipc/protocol/manifest_mode.h"

namespace refrain {
namespace {

// A draft model's graph is replayed with the one of the model at its key.
std::string_view runtime_mode(const ipc::ManifestEntry& entry) {
  std::string_view mode = entry.mode;
  if (mode.starts_with(ipc::kDraftMode)) mode.remove_prefix(ipc::kDraftMode.size());
  return mode;
}

bool replayed(const EngineStats& stats, const ipc::ManifestEntry& entry) {
  return std::any_of(stats.graph_uses.begin(), stats.graph_uses.end(), [&](const GraphUse& use) {
    return use.count > 0 && use.mode == runtime_mode(entry) &&
           use.padded_tokens == entry.num_tokens && use.has_lora == entry.has_lora;
  });
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The most frequent batches that ran; what is left out is counted.
constexpr size_t kMostRows = 500;

struct Rows {
  std::vector<GraphUse> shown;
  size_t left_out = 0;
  uint64_t steps_left_out = 0;
};

Rows rows_of(const EngineStats& stats) {
  Rows rows;
  for (const GraphUse& use : stats.graph_uses) {
    if (use.count == 0) continue;  // captured and never replayed: the manifest says so
    if (rows.shown.size() < kMostRows) {
      rows.shown.push_back(use);
    } else {
      ++rows.left_out;
      rows.steps_left_out += use.count;
    }
  }
  return rows;
}

std::string rest_of(const Rows& rows) {
  if (rows.left_out == 0) return "";
  return fmt::format("{} rarer batches, {} steps together, are left out", rows.left_out,
                     rows.steps_left_out);
}

std::string audit_of(const EngineStats& stats) {
  if (stats.audited_steps == 0) return "";
  std::string text = fmt::format(
      "audited: {} steps, {} differences beyond the bound; worst distance of logits {:.3g}, of "
      "keys "
      "and values {:.3g} of the largest",
      stats.audited_steps, stats.audit_differences, stats.audit_worst_logit, stats.audit_worst_kv);
  if (!stats.audit_first.empty()) text += "; the first: " + stats.audit_first;
  return text;
}

// A table may be wider than a phone: it scrolls, and the page does not.
constexpr const char* kHead =
    "<!doctype html><html lang=en><meta charset=utf-8>"
    "<meta name=viewport content=\"width=device-width, initial-scale=1\">"
    "<link rel=icon href=\"data:,\"><title>Refrain: graphs</title>"
    "<style>:root{color-scheme:light dark}body{font:15px/1.4 system-ui,sans-serif;margin:0;"
    "padding:1rem;max-width:60rem;color:#222;background:#fff}table{border-collapse:collapse}"
    "div{overflow-x:auto;margin:1rem 0}td,th{padding:.25rem .6rem;text-align:right;"
    "white-space:nowrap;border-bottom:1px solid #ddd}th{background:#f4f4f4}td:first-child,"
    "th:first-child,.left{text-align:left}.share{width:10rem}.bar{background:#4a7ebb;height:.7rem;"
    "display:block}dt{float:left;clear:left;width:6.5rem}dd{margin:0 0 .3rem 6.5rem}"
    "input,button{font:inherit;padding:.3rem .6rem}"
    ".FULL{color:#1a6b2a}.PIECEWISE{color:#8a5a00}.NONE{color:#a33}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}th{background:#2a2a2a}"
    "td,th{border-color:#444}a{color:#8ab4f8}.FULL{color:#6fce8a}.PIECEWISE{color:#e0a83a}"
    ".NONE{color:#f08a80}}</style><h1>Graphs that ran</h1>";

constexpr const char* kLegend =
    "<dl><dt class=FULL>FULL<dd>the whole step was one graph<dt class=PIECEWISE>PIECEWISE<dd>the "
    "parts between the attention ops were graphs<dt class=NONE>NONE<dd>no graph ran; the last "
    "column says why<dt>padding<dd>a graph has a fixed number of tokens, and rows without one are "
    "computed for nothing</dl>";

// Why a step of this shape ran without a graph, as far as its shape tells.
std::string why_none(const EngineStats& stats, const GraphUse& use) {
  if (use.mode != "NONE") return "";
  if (stats.ready.empty()) return "before anything was captured";
  const ipc::Ready& rank = stats.ready.front();
  if (rank.manifest.empty()) return "nothing is captured (--cudagraph-mode, --enforce-eager)";
  const auto& sizes = rank.capture_sizes;
  const int32_t most = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
  if (use.num_tokens > most) return fmt::format("more tokens than the largest size, {}", most);
  return "a prompt's log-probabilities, a shared prefix read once, a mode without graphs for "
         "prompts, or padding forbidden";
}

// Steps by mode, and the share of padding in the rows of graphs; a row of the table and a line.
struct Totals {
  uint64_t steps = 0, tokens = 0, rows = 0, graph_tokens = 0, graph_rows = 0;
  std::map<std::string, uint64_t> by_mode;
};

Totals totals_of(const EngineStats& stats) {
  Totals all;
  for (const GraphUse& use : stats.graph_uses) {
    const auto tokens = static_cast<uint64_t>(use.num_tokens) * use.count;
    const auto rows = static_cast<uint64_t>(use.padded_tokens) * use.count;
    all.steps += use.count, all.tokens += tokens, all.rows += rows;
    all.by_mode[use.mode] += use.count;
    if (use.mode == "NONE") continue;
    all.graph_tokens += tokens, all.graph_rows += rows;
  }
  return all;
}

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string summary_of(const Totals& all) {
  std::string text = fmt::format("{} steps", all.steps);
  for (const char* mode : {"FULL", "PIECEWISE", "NONE"}) {
    const auto found = all.by_mode.find(mode);
    if (found != all.by_mode.end() && found->second > 0)
      text += fmt::format(" · {} {:.1f} %", mode, percent(found->second, all.steps));
  }
  return text + fmt::format(" · padding {:.1f} % of the rows that graphs ran",
                            percent(all.graph_rows - all.graph_tokens, all.graph_rows));
}

// Of groups with roles, what moves between them.
std::string groups_of(const EngineStats& stats) {
  std::string html;
  for (const GroupStats& group : stats.groups) {
    if (group.role == ipc::GroupRole::kBoth) continue;
    if (html.empty())
      html =
          "<h2>Groups</h2><div><table><tr><th>group<th>role<th>state<th>leases<th>transfers<th>done"
          "<th>given up<th>MiB</tr>";
    html +=
        fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.1f}</tr>", group.group,
                    ipc::to_string(group.role), to_string(group.state), group.leases,
                    group.transfers.running, group.transfers.done, group.transfers.failed,
                    static_cast<double>(group.transfers.bytes) / 1048576.0);
  }
  return html.empty() ? html : html + "</table></div>";
}

}  // namespace

Json cudagraph_json(const EngineStats& stats) {
  Json json;
  json["steps"] = totals_of(stats).steps;
  json["state"] = to_string(stats.state);
  if (stats.groups.size() > 1) {  // their ranks follow each other in "ranks"
    json["groups"] = Json::array();
    for (const GroupStats& group : stats.groups)
      json["groups"].push_back({{"group", group.group},
                                {"role", ipc::to_string(group.role)},
                                {"state", to_string(group.state)},
                                {"detail", group.state_detail},
                                {"epoch", group.epoch},
                                {"restarts", group.group_restarts},
                                {"steps", group.steps},
                                {"ranks", group.ready.size()},
                                {"leases", group.leases},
                                {"transfers",
                                 {{"running", group.transfers.running},
                                  {"quarantined", group.transfers.quarantined},
                                  {"done", group.transfers.done},
                                  {"failed", group.transfers.failed},
                                  {"bytes", group.transfers.bytes},
                                  {"early_bytes", group.transfers.early_bytes}}}});
  }
  json["dispatch"] = Json::array();
  const Rows rows = rows_of(stats);
  json["dispatch_left_out"] = {{"batches", rows.left_out}, {"steps", rows.steps_left_out}};
  for (const GraphUse& use : rows.shown) {
    json["dispatch"].push_back({{"mode", use.mode},
                                {"num_tokens", use.num_tokens},
                                {"padded_tokens", use.padded_tokens},
                                {"has_lora", use.has_lora},
                                {"paddings", use.padded_tokens - use.num_tokens},
                                {"count", use.count}});
  }
  json["audit"] = {{"steps", stats.audited_steps},
                   {"differences", stats.audit_differences},
                   {"worst_logit", stats.audit_worst_logit},
                   {"worst_kv", stats.audit_worst_kv},
                   {"first", stats.audit_first.empty() ? Json() : Json(stats.audit_first)}};
  json["ranks"] = Json::array();
  for (size_t index = 0; index < stats.ready.size(); ++index) {
    const ipc::Ready& ready = stats.ready[index];
    Json rank = {{"device", index < stats.devices.size() ? stats.devices[index] : ""},
                 {"cudagraph_mode", ready.cudagraph_mode},
                 {"uniform_query_len", ready.uniform_query_len},
                 {"capture_sizes", ready.capture_sizes},
                 {"arena_bytes", ready.arena_bytes},
                 {"warnings", ready.warnings},
                 {"manifest", Json::array()},
                 {"memory", Json::object()}};
    for (const ipc::ManifestEntry& entry : ready.manifest) {
      rank["manifest"].push_back({{"mode", entry.mode},
                                  {"num_tokens", entry.num_tokens},
                                  {"num_reqs", entry.num_reqs},
                                  {"uniform", entry.uniform},
                                  {"has_lora", entry.has_lora},
                                  {"capture_hidden_mode", ipc::to_string(entry.hidden)},
                                  {"pieces", entry.pieces},
                                  {"nodes", entry.nodes},
                                  {"bytes", entry.bytes},
                                  {"capture_ms", entry.capture_ms},
                                  {"digest", fmt::format("{:016x}", entry.digest)},
                                  {"launch_digest", fmt::format("{:016x}", entry.launch_digest)},
                                  {"replayed", replayed(stats, entry)}});
    }
    for (size_t i = 0; i < ready.memory_tags.size() && i < ready.memory_bytes.size(); ++i) {
      rank["memory"][ready.memory_tags[i]] = ready.memory_bytes[i];
    }
    json["ranks"].push_back(std::move(rank));
  }
  return json;
}

std::string cudagraph_text(const EngineStats& stats) {
  std::string text = fmt::format("{:>10} {:>10} {:>9} {:<10} {:>10}\n", "tokens", "padded",
                                 "paddings", "mode", "count");
  const Rows rows = rows_of(stats);
  for (const GraphUse& use : rows.shown) {
    text += fmt::format("{:>10} {:>10} {:>9} {:<10} {:>10}\n", use.num_tokens, use.padded_tokens,
                        use.padded_tokens - use.num_tokens, use.mode, use.count);
    if (use.has_lora) text.replace(text.size() - 1, 1, " LoRA\n");
  }
  if (rows.left_out > 0) text += rest_of(rows) + "\n";
  if (const std::string audit = audit_of(stats); !audit.empty()) text += audit + "\n";
  if (stats.ready.empty()) return text;
  std::string idle;
  for (const ipc::ManifestEntry& entry : stats.ready.front().manifest) {
    if (!replayed(stats, entry))
      idle += fmt::format(" {}:{}{}", entry.mode, entry.num_tokens, entry.has_lora ? ":LoRA" : "");
  }
  text += "captured and never replayed:" + (idle.empty() ? " none" : idle) + "\n";
  return text;
}

std::string cudagraph_page(const EngineStats& stats) {
  const Totals all = totals_of(stats);
  std::string html = fmt::format(
      "{}<p>{} · {} · <a href=\"?format=json\">JSON</a></p><div><table><tr><th>mode<th>tokens"
      "<th>padded<th>paddings<th>count<th class=\"left share\">share<th class=left>why</tr>",
      kHead, to_string(stats.state), summary_of(all));
  const Rows rows = rows_of(stats);
  for (const GraphUse& use : rows.shown) {
    html += fmt::format(
        "<tr><td class={0}>{0}{6}<td>{1}<td>{2}<td>{3}<td>{4}<td class=left><span class=bar "
        "style=\"width:{5:.1f}%\" title=\"{5:.1f} %\"></span><td class=left>{7}</tr>",
        use.mode, use.num_tokens, use.padded_tokens, use.padded_tokens - use.num_tokens, use.count,
        percent(use.count, all.steps), use.has_lora ? " LoRA" : "", why_none(stats, use));
  }
  html += fmt::format(
      "<tr><th>all<th>{}<th>{}<th>{}<th>{}<th class=left>tokens and rows of all steps<th></tr>",
      all.tokens, all.rows, all.rows - all.tokens, all.steps);
  html += "</table></div>" + (rows.left_out > 0 ? "<p>" + rest_of(rows) : std::string());
  html += kLegend;
  if (const std::string audit = audit_of(stats); !audit.empty()) {
    html += fmt::format("<p class={}>{}</p>", stats.audit_differences > 0 ? "NONE" : "FULL",
                        escape(audit));
  }
  html += groups_of(stats);
  for (size_t rank = 0; rank < stats.ready.size(); ++rank) {
    const ipc::Ready& ready = stats.ready[rank];
    html += fmt::format("<h2>Rank {}: {} captured, arena {:.1f} MiB, mode {}</h2>", rank,
                        ready.manifest.size(), static_cast<double>(ready.arena_bytes) / 1048576.0,
                        escape(ready.cudagraph_mode));
    for (const std::string& warning : ready.warnings) html += "<p>⚠ " + escape(warning) + "</p>";
    html +=
        "<div><table><tr><th>mode<th>tokens<th>requests<th>uniform<th>hidden<th>pieces<th>nodes<th>"
        "bytes<th>"
        "ms"
        "<th>replayed</tr>";
    for (const ipc::ManifestEntry& entry : ready.manifest) {
      html += fmt::format(
          "<tr><td class={0}>{0}{9}<td>{1}<td>{2}<td>{3}<td>{10}<td>{4}<td>{5}<td>{6}<td>{7:.2f}"
          "<td>{8}</tr>",
          entry.mode, entry.num_tokens, entry.num_reqs, entry.uniform ? "yes" : "", entry.pieces,
          entry.nodes, entry.bytes, entry.capture_ms, replayed(stats, entry) ? "yes" : "never",
          entry.has_lora ? " LoRA" : "", ipc::to_string(entry.hidden));
    }
    html += "</table></div>";
  }
  return html;
}

std::string cudagraph_key_page() {
  return std::string(kHead) + R"(<form><p>This server has keys. Yours stays in this tab.
<p><label>Key <input type=password autocomplete=off></label> <button>Open</button> <span role=status></span></form>
<script>
"use strict";
const at = name => document.querySelector(name);
async function open() {
  const key = sessionStorage.getItem("key");
  if (!key) return;
  const told = await fetch(location.href, {headers: {Authorization: "Bearer " + key, Accept: "text/html"}});
  if (told.status === 401) return at("span").textContent = "that key is not known";
  const text = await told.text();
  if ((told.headers.get("Content-Type") || "").startsWith("text/html")) {
    document.open(); document.write(text); document.close();
  } else {
    const shown = document.createElement("pre");
    shown.textContent = text;
    document.body.replaceChildren(shown);
  }
}
at("form").addEventListener("submit", event => {
  event.preventDefault(); sessionStorage.setItem("key", at("input").value); open();
});
open();
</script>
)";
}

}  // namespace refrain
