#include "client/plan_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/bar_chart.h"
#include "client/fact_sheet.h"
#include "client/format.h"
#include "client/names.h"

namespace ripplekv {
namespace {

constexpr int kMaxChartColumns = 110;

// "int8", or "int8:int4" where keys and values differ.
std::string NameOfTypes(const v1::LayerBudget& layer) {
  if (layer.key_type() == layer.value_type()) return NameOf(layer.key_type());
  return absl::StrCat(NameOf(layer.key_type()), ":", NameOf(layer.value_type()));
}

// What keeps one more request from running.
absl::string_view LimitOf(const v1::Capacity& capacity) {
  if (capacity.by_kv_memory() == capacity.requests()) return "KV memory";
  if (capacity.by_work_memory() == capacity.requests()) return "--work-memory";
  return "--max-batch";
}

}  // namespace

std::string RenderPlan(const v1::PlanBudgetsResponse& response, int64_t prompt_tokens,
                       const Terminal& terminal) {
  const v1::Plan& plan = response.plan();
  FactSheet head;
  head.Add("prompt", {absl::StrCat(FormatCount(prompt_tokens), " tokens")});
  head.Add("plan", {Describe(plan.allocator()), Describe(plan.size()), DescribeSource(plan)});
  if (plan.chooses_types()) {
    head.Add("types", {"chosen layer by layer",
                       absl::StrCat(FormatBytes(response.byte_budget()), " of rows at most")});
  }
  head.Add("floors", {absl::StrCat(FormatCount(plan.floor_positions()), " positions every layer"),
                      absl::StrCat(FormatCount(plan.min_positions()), " a layer on average")});
  if (response.layers().empty()) return head.Render(terminal);

  std::vector<BarChartRow> rows;
  std::vector<double> values;
  const v1::LayerBudget* least = &response.layers(0);
  const v1::LayerBudget* most = least;
  for (const v1::LayerBudget& layer : response.layers()) {
    values.push_back(layer.positions());
    const std::string positions = FormatCount(layer.positions());
    const std::string multiplier = absl::StrFormat("%s%.3f", terminal.times(), layer.multiplier());
    const std::string types =
        plan.chooses_types() ? absl::StrCat("  ", NameOfTypes(layer)) : std::string();
    rows.push_back({absl::StrCat(layer.layer()), values.back(),
                    absl::StrCat(positions, "  ", multiplier, types), positions});
    if (layer.positions() < least->positions()) least = &layer;
    if (layer.positions() > most->positions()) most = &layer;
  }
  const double layers = response.layers_size();
  const double uniform = static_cast<double>(response.total_positions()) / layers;
  const double full = layers * static_cast<double>(prompt_tokens);

  FactSheet foot;
  foot.Add("sum", {absl::StrCat(FormatCount(response.total_positions()), " of ",
                                FormatCount(static_cast<int64_t>(full)), " positions"),
                   FormatPercent(static_cast<double>(response.total_positions()) / full)});
  foot.Add(
      "layers",
      {absl::StrCat("least ", FormatCount(least->positions()), " (layer ", least->layer(), ")"),
       absl::StrCat("most ", FormatCount(most->positions()), " (layer ", most->layer(), ")")});
  if (response.full_kv_bytes() > 0) {
    foot.Add("KV bytes", {absl::StrCat(FormatBytes(response.kv_bytes()), " planned"),
                          absl::StrCat(FormatBytes(response.full_kv_bytes()), " in full"),
                          FormatPercent(static_cast<double>(response.kv_bytes()) /
                                        static_cast<double>(response.full_kv_bytes()))});
  }
  if (response.has_capacity()) {
    const v1::Capacity& capacity = response.capacity();
    foot.Add("fits", {absl::StrCat(FormatCount(capacity.requests()), " requests of ",
                                   FormatCount(prompt_tokens), " + ",
                                   FormatCount(capacity.output_tokens()), " tokens at once"),
                      absl::StrCat("limited by ", LimitOf(capacity))});
    foot.Add("a request",
             {absl::StrCat(FormatCount(capacity.request_pages()), " of ",
                           FormatCount(capacity.pages()), " pages"),
              FormatBytes(capacity.request_pages() * capacity.page_bytes()),
              absl::StrCat(FormatBytes(capacity.request_work_bytes()), " of work memory")});
  }
  const std::string asked = FormatCount(response.requested_positions());
  if (response.full()) {
    foot.Add("note", {"every position is kept: a prompt of this length is not compressed"});
  }
  if (response.raised()) {
    foot.Add("note", {absl::StrCat("raised from ", asked, " positions to ", plan.min_positions(),
                                   " a layer (min_positions)")});
  }
  if (response.clamped()) {
    foot.Add("note", {absl::StrCat("clamped from ", asked,
                                   " positions to what the floors and the prompt permit")});
  }
  head.Add("bars",
           {"b_l: positions kept per KV head", absl::StrCat(terminal.times(), "w_l"),
            absl::StrCat(terminal.utf8 ? "│" : "|", " uniform: ", FormatNumber(uniform, 6))});
  return absl::StrCat(head.Render(terminal), "\n",
                      RenderBarChart(rows, LinearScale(values),
                                     {.width = std::min(terminal.width, kMaxChartColumns),
                                      .utf8 = terminal.utf8,
                                      .mark = uniform}),
                      foot.Render(terminal));
}

}  // namespace ripplekv
