#include "runtime/load/load_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace refrain {
namespace {

constexpr double kWidth = 560, kHeight = 170, kLeft = 70, kGap = 75;
constexpr size_t kMostPoints = 400;

// The least of 1, 2 and 5 times a power of ten that is no less.
double round_up(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (value <= step * power) return step * power;
  }
  return 10 * power;
}

struct Point {
  double x = 0, y = 0;
};

struct Panel {
  std::string title, x_name;
  std::vector<Point> points;
};

std::string draw(const Panel& panel, size_t index) {
  double most_x = 0, most_y = 0;
  for (const Point& point : panel.points) {
    most_x = std::max(most_x, point.x);
    most_y = std::max(most_y, point.y);
  }
  most_x = round_up(most_x);
  most_y = round_up(most_y);
  const double top = 30 + static_cast<double>(index) * (kHeight + kGap);
  std::string svg = fmt::format("<g transform=\"translate({},{})\">", kLeft, top);
  svg += fmt::format("<text y=\"-10\" class=\"title\">{}</text>", panel.title);
  for (int i = 0; i <= 4; ++i) {
    const double x = kWidth * i / 4, y = kHeight - kHeight * i / 4;
    svg += fmt::format(
        "<path class=\"grid\" d=\"M0 {0:.1f}H{1}M{2:.1f} 0V{3}\"/>"
        "<text x=\"-8\" y=\"{0:.1f}\" dy=\"4\" text-anchor=\"end\">{4:.5g}</text>"
        "<text x=\"{2:.1f}\" y=\"{5}\" text-anchor=\"middle\">{6:.5g}</text>",
        y, kWidth, x, kHeight, most_y * i / 4, kHeight + 16, most_x * i / 4);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", kWidth / 2,
                     kHeight + 32, panel.x_name);
  const size_t step = std::max<size_t>(1, panel.points.size() / kMostPoints);
  std::string path;
  for (size_t i = 0; i < panel.points.size(); i += step) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L",
                        kWidth * panel.points[i].x / most_x,
                        kHeight - kHeight * panel.points[i].y / most_y);
  }
  return svg + fmt::format("<path class=\"line\" d=\"{}\"/></g>", path);
}

Panel spread(const LoadMetric& metric) {
  Panel panel{metric.title + ": share of samples at or below", "milliseconds", {}};
  const size_t count = metric.samples.size();
  const size_t step = std::max<size_t>(1, count / kMostPoints);
  for (size_t i = 0; i < count; i += step) {
    panel.points.push_back(
        {metric.samples[i], static_cast<double>(i + 1) / static_cast<double>(count)});
  }
  if (count > 0) panel.points.push_back({metric.samples.back(), 1});
  return panel;
}

}  // namespace

std::string load_plot(const LoadFigures& figures, const std::vector<LoadRecord>& records) {
  Panel tokens{"Output tokens a second", "seconds", {}};
  Panel requests{"Requests under way", "seconds", {}};
  double second = 0;
  for (const LoadSecond& at : load_timeline(records, figures.duration)) {
    tokens.points.push_back({second, at.output_tokens});
    requests.points.push_back({second++, static_cast<double>(at.requests)});
  }
  std::vector<Panel> panels = {std::move(tokens), std::move(requests)};
  for (const LoadMetric& metric : figures.metrics) panels.push_back(spread(metric));
  const double height = 30 + static_cast<double>(panels.size()) * (kHeight + kGap);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\"><style>svg{{background:#fff}}text{{font:12px system-ui,sans-serif;fill:#444}}"
      ".title{{font-size:14px;fill:#111}}.grid{{stroke:#ccc;stroke-width:.5;fill:none}}"
      ".line{{stroke:#2f6fb3;stroke-width:1.5;fill:none}}@media(prefers-color-scheme:dark){{"
      "svg{{background:#181818}}text{{fill:#bbb}}.title{{fill:#eee}}.grid{{stroke:#444}}"
      ".line{{stroke:#6fb0f0}}}}</style>",
      kWidth + kLeft + 30, height);
  for (size_t i = 0; i < panels.size(); ++i) svg += draw(panels[i], i);
  return svg + "</svg>\n";
}

}  // namespace refrain
