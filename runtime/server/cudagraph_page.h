#pragma once
// CG-32: which graphs ran how often, which were captured and never replayed; as JSON, as text and
// as a page for people. Pure functions of the engine's statistics.

#include <string>

#include "runtime/engine/engine.h"
#include "runtime/server/json_fields.h"

namespace refrain {

Json cudagraph_json(const EngineStats& stats);
std::string cudagraph_text(const EngineStats& stats);  // for terminals and logs
std::string cudagraph_page(const EngineStats& stats);  // HTML, no outside resources
// In its place where keys are set and a browser has none: a form, whose script asks again with the
// key that a person gives, and keeps that in the tab, as the dashboard does.
std::string cudagraph_key_page();

}  // namespace refrain
