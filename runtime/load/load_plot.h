#pragma once
// A load as one picture: tokens a second and requests over time, and how the times are spread.
// Pure.

#include <string>

#include "runtime/load/load_figures.h"

namespace refrain {

// SVG that needs nothing else; readable in light and dark.
std::string load_plot(const LoadFigures& figures, const std::vector<LoadRecord>& records);

}  // namespace refrain
