#include <tapehead/inspect/svg.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/core/errors.h>
#include <tapehead/inspect/heat_map.h>

namespace tapehead {
namespace {

// ---- The document

// As text of an XML document: valid UTF-8, no control characters, nothing that is read as markup.
std::string escaped(std::string_view text) {
  using Json = nlohmann::json;  // its writer replaces what is not UTF-8
  const std::string valid =
      Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  std::string result;
  for (const char c : valid) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? result += "\uFFFD" : result += c;
    }
  }
  return result;
}

// A blank has no width in SVG, and a line's end none anywhere.
std::string shown(std::string_view token) {
  if (token == " ") return "\u2423";
  if (token == "\n") return "\u21B5";
  if (token == "\t") return "\u21E5";
  return escaped(token);
}

constexpr std::string_view styles =
    ".ground{fill:#fff}.ink{fill:#1c2128}.soft{fill:#59636e}.line{stroke:#d8dde2}.cell{fill:#0b4a84}"
    ".curve{stroke:#1f6199}.range{fill:#1f6199}.hatch{stroke:#b9c2cb}"
    "text{font-family:system-ui,-apple-system,Segoe UI,Roboto,Noto Sans,sans-serif}"
    "@media(prefers-color-scheme:dark){.ground{fill:#191e25}.ink{fill:#e4e8ec}.soft{fill:#9aa5b1}"
    ".line{stroke:#323b46}.cell{fill:#8cc8ff}.curve{stroke:#79b8ec}.range{fill:#79b8ec}.hatch{stroke:#475261}"
    "}";

std::string opened(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect class=\"ground\" fill=\"#fff\" width=\"100%\" height=\"100%\"/>\n",
      width, height, escaped(title), styles);
}

enum class Anchor { start, middle, end };

// Text whose base line is at y; turned by a quarter it reads upwards. `text` is escaped.
std::string written(double x, double y, std::string_view text, double size = 11,
                    Anchor anchor = Anchor::start, bool upwards = false, std::string_view look = "soft") {
  constexpr const char* anchors[] = {"start", "middle", "end"};
  const std::string turn = upwards ? fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y) : "";
  return fmt::format(
      "<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\"{}>{}</text>\n", look,
      x, y, size, anchors[static_cast<int>(anchor)], turn, text);
}

// ---- Attention

constexpr Index most_cells = 64;
constexpr int shades = 32;
constexpr double margin = 20, gap = 28, title_height = 34, head_height = 20, letter = 6.2;
constexpr int heads_a_line = 4;

// What one attention looks like, the same for each of its heads.
struct HeadForm {
  Index samples = 1, heads = 1, queries = 0, keys = 0;
  Index rows = 0, columns = 0;  // cells
  double cell = 1;
  double left = 14, top = 14;  // room for what stands along the edges
  bool tokens = false;
  double darkest = 1;  // the weight that has the full colour

  double width() const { return left + cell * static_cast<double>(columns); }
  double height() const { return head_height + top + cell * static_cast<double>(rows); }
};

double widest(const std::vector<std::string>& tokens) {
  std::size_t letters = 0;
  for (const std::string& token : tokens) letters = std::max(letters, token.size());
  return std::min(letter * static_cast<double>(letters), 90.0) + 8;
}

HeadForm form_of(const AttentionTable& attention) {
  const Shape& shape = attention.weights.shape;
  HeadForm form;
  form.heads = shape.rank() > 2 ? shape.dim(-3) : 1;
  form.queries = shape.dim(-2), form.keys = shape.dim(-1);
  form.samples = shape.rank() > 3 ? shape.dim(0) : 1;
  const auto cells = [](Index length) {
    const Index block = std::max<Index>((length + most_cells - 1) / most_cells, 1);
    return (length + block - 1) / block;
  };
  form.rows = cells(form.queries), form.columns = cells(form.keys);
  form.cell = std::clamp(
      std::floor(230.0 / static_cast<double>(std::max<Index>({form.rows, form.columns, 1}))), 3.0, 24.0);
  form.tokens = form.cell >= 9 && form.rows == form.queries && form.columns == form.keys &&
                std::ssize(attention.query_tokens) == form.queries &&
                std::ssize(attention.key_tokens) == form.keys;
  if (form.tokens) {
    form.left += widest(attention.query_tokens);
    form.top += widest(attention.key_tokens);
  }
  return form;
}

std::span<const double> head_of(const ArrayNumbers& array, const HeadForm& form, Index head) {
  const auto size = static_cast<std::size_t>(form.queries * form.keys);
  return std::span(array.numbers).subspan(static_cast<std::size_t>(head) * size, size);
}

// The cells of a picture for which holds(cell) is true, as one path: runs of a row are one rectangle.
template <class Holds>
std::string outline(const HeatMap& map, double cell, Holds holds) {
  std::string path;
  for (Index i = 0; i < map.rows; ++i) {
    for (Index j = 0; j < map.columns;) {
      const Index start = j;
      while (j < map.columns && holds(map.cells[static_cast<std::size_t>(i * map.columns + j)])) ++j;
      if (j > start) {
        path +=
            fmt::format("M{} {}h{}v{}h-{}z", cell * static_cast<double>(start), cell * static_cast<double>(i),
                        cell * static_cast<double>(j - start), cell, cell * static_cast<double>(j - start));
      } else {
        ++j;
      }
    }
  }
  return path;
}

HeatMap map_of(const ArrayNumbers& array, const HeadForm& form, Index head) {
  return heat_map(head_of(array, form, head), form.queries, form.keys, most_cells);
}

// Of all heads, so that their shades can be compared.
double largest_cell(const AttentionTable& attention, const HeadForm& form) {
  double largest = 0;
  for (Index head = 0; head < form.heads; ++head) {
    const HeatMap map = map_of(attention.weights, form, head);
    for (const double x : map.cells) largest = std::max(largest, x);
  }
  return largest;
}

std::string painted_head(const AttentionTable& attention, const HeadForm& form, Index head) {
  std::string text;
  const HeatMap weights = map_of(attention.weights, form, head);
  if (attention.scores) {
    const std::string closed =
        outline(map_of(*attention.scores, form, head), form.cell, [](double x) { return x == -INFINITY; });
    if (!closed.empty()) text += fmt::format("<path fill=\"url(#hatch)\" d=\"{}\"/>\n", closed);
  }
  for (int shade = 1; shade <= shades; ++shade) {
    const std::string path = outline(weights, form.cell, [&](double x) {
      return std::isfinite(x) && std::lround(x / form.darkest * shades) == shade;
    });
    if (path.empty()) continue;
    text += fmt::format(
        "<path class=\"cell\" shape-rendering=\"crispEdges\" fill=\"#0b4a84\" fill-opacity=\"{:.3f}\" "
        "d=\"{}\"/>\n",
        static_cast<double>(shade) / shades, path);
  }
  return text +
         fmt::format("<rect class=\"line\" fill=\"none\" stroke=\"#d8dde2\" width=\"{}\" height=\"{}\"/>\n",
                     form.cell * static_cast<double>(form.columns),
                     form.cell * static_cast<double>(form.rows));
}

std::string edges(const AttentionTable& attention, const HeadForm& form) {
  if (!form.tokens) {
    return written(-5, 0, "query", 10, Anchor::end, true) + written(0, -5, "key", 10);
  }
  std::string text;
  const double size = std::min(form.cell, 11.0);
  for (std::size_t i = 0; i < attention.query_tokens.size(); ++i) {
    const double middle = form.cell * (static_cast<double>(i) + 0.5) + size / 3;
    text += written(-5, middle, shown(attention.query_tokens[i]), size, Anchor::end);
  }
  for (std::size_t j = 0; j < attention.key_tokens.size(); ++j) {
    const double middle = form.cell * (static_cast<double>(j) + 0.5) + size / 3;
    text += written(middle, -5, shown(attention.key_tokens[j]), size, Anchor::start, true);
  }
  return text;
}

std::string drawn_head(const AttentionTable& attention, const HeadForm& form, Index head, double x,
                       double y) {
  return fmt::format("<g transform=\"translate({:.1f} {:.1f})\">\n", x, y) +
         written(form.left, 12, fmt::format("head {}", head), 12, Anchor::start, false, "ink") +
         fmt::format("<g transform=\"translate({:.1f} {:.1f})\">\n", form.left, head_height + form.top) +
         painted_head(attention, form, head) + edges(attention, form) + "</g>\n</g>\n";
}

std::string heading(const AttentionTable& attention, const HeadForm& form) {
  std::string text = attention.label.empty() ? fmt::format("%{}", attention.node) : escaped(attention.label);
  text += fmt::format(": {} {} by {} {}", form.queries, form.queries == 1 ? "query" : "queries", form.keys,
                      form.keys == 1 ? "key" : "keys");
  if (form.rows != form.queries || form.columns != form.keys) text += ", cells are means of weights";
  if (form.samples > 1) text += fmt::format(", sample 0 of {}", form.samples);
  return text + fmt::format("; the full colour is {:.3g}", form.darkest);
}

// ---- The curve of a loss

struct Ticks {
  double first, step;
  int count;
};

// Steps of 1, 2 or 5 times a power of ten, about `wanted` of them from low to high.
Ticks ticks_between(double low, double high, int wanted) {
  const double rough = (high - low) / wanted, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough / power < 1.5   ? 1
                               : rough / power < 3.5 ? 2
                               : rough / power < 7.5 ? 5
                                                     : 10);
  const double first = std::ceil(low / step - 1e-9) * step;
  return {first, step, static_cast<int>(std::floor((high - first) / step + 1e-9)) + 1};
}

struct Plot {
  double left = 62, top = 44, width = 620, height = 260;
  double low, high;    // loss
  double first, last;  // step

  double x(double step) const {
    return left + width * (last == first ? 0.5 : (step - first) / (last - first));
  }
  double y(double loss) const { return top + height * (high - loss) / (high - low); }
};

std::string axes(const Plot& plot) {
  std::string text;
  const Ticks losses = ticks_between(plot.low, plot.high, 5);
  for (int k = 0; k < losses.count; ++k) {
    const double loss = losses.first + k * losses.step, y = plot.y(loss);
    text += fmt::format("<path class=\"line\" stroke=\"#d8dde2\" d=\"M{:.1f} {:.1f}h{}\"/>\n", plot.left, y,
                        plot.width);
    text += written(plot.left - 8, y + 4, fmt::format("{:.4g}", std::abs(loss) < losses.step / 2 ? 0 : loss),
                    11, Anchor::end);
  }
  const Ticks steps =
      plot.last > plot.first ? ticks_between(plot.first, plot.last, 6) : Ticks{plot.first, 1, 1};
  for (int k = 0; k < steps.count; ++k) {
    const double step = steps.first + k * steps.step;
    if (step != std::floor(step)) continue;
    text +=
        written(plot.x(step), plot.top + plot.height + 18, fmt::format("{:.0f}", step), 11, Anchor::middle);
  }
  return text + written(plot.left + plot.width / 2, plot.top + plot.height + 36, "step", 11, Anchor::middle);
}

// What falls on one pixel of the plot.
struct Bin {
  double step, mean, low, high;
};

std::vector<Bin> bins_of(std::span<const double> losses, std::size_t most) {
  std::vector<Bin> bins;
  const std::size_t count = std::min(most, losses.size());
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t start = k * losses.size() / count, end = (k + 1) * losses.size() / count;
    const auto part = losses.subspan(start, end - start);
    double sum = 0;
    for (const double loss : part) sum += loss;
    bins.push_back({static_cast<double>(start + end - 1) / 2 + 1, sum / static_cast<double>(part.size()),
                    std::ranges::min(part), std::ranges::max(part)});
  }
  return bins;
}

std::string curve(const Plot& plot, const std::vector<Bin>& bins) {
  std::string line, range;
  for (const Bin& bin : bins)
    line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", plot.x(bin.step), plot.y(bin.mean));
  for (const Bin& bin : bins)
    range += fmt::format("{}{:.1f} {:.1f}", range.empty() ? "M" : "L", plot.x(bin.step), plot.y(bin.high));
  for (std::size_t k = bins.size(); k-- > 0;)
    range += fmt::format("L{:.1f} {:.1f}", plot.x(bins[k].step), plot.y(bins[k].low));
  if (bins.size() == 1) {
    return fmt::format("<circle class=\"range\" fill=\"#1f6199\" r=\"3\" cx=\"{:.1f}\" cy=\"{:.1f}\"/>\n",
                       plot.x(bins[0].step), plot.y(bins[0].mean));
  }
  return fmt::format(
      "<path class=\"range\" fill=\"#1f6199\" fill-opacity=\"0.2\" d=\"{}z\"/>\n"
      "<path class=\"curve\" fill=\"none\" stroke=\"#1f6199\" stroke-width=\"1.8\" stroke-linejoin=\"round\" "
      "d=\"{}\"/>\n",
      range, line);
}

}  // namespace

void write_attention_svg(std::ostream& out, const TapeTable& table) {
  if (table.attention.empty()) {
    throw DomainError("attention picture",
                      "there are no attention weights: they were not kept, or the fused "
                      "kernel ran, which never makes them");
  }
  std::string body;
  double width = 0, y = margin;
  for (const AttentionTable& attention : table.attention) {
    HeadForm form = form_of(attention);
    form.darkest = std::max(largest_cell(attention, form), 1e-12);
    body += written(margin, y + 14, heading(attention, form), 14, Anchor::start, false, "ink");
    y += title_height;
    for (Index head = 0; head < form.heads; ++head) {
      const auto column = static_cast<double>(head % heads_a_line);
      if (head > 0 && head % heads_a_line == 0) y += form.height() + gap;
      body += drawn_head(attention, form, head, margin + column * (form.width() + gap), y);
    }
    const auto columns = static_cast<double>(std::min<Index>(form.heads, heads_a_line));
    width = std::max({width, columns * (form.width() + gap) - gap, 420.0});
    y += form.height() + gap;
  }
  out << opened(width + 2 * margin, y,
                table.title.empty() ? "Attention weights" : "Attention weights of " + table.title)
      << "<pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
         "patternTransform=\"rotate(45)\">"
         "<path class=\"hatch\" stroke=\"#b9c2cb\" stroke-width=\"1.2\" d=\"M0 0V5\"/></pattern>\n"
      << body << "</svg>\n";
}

void write_loss_svg(std::ostream& out, std::string_view title, std::span<const double> losses) {
  if (losses.empty()) throw DomainError("loss picture", "there is no loss");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (!std::isfinite(losses[i])) {
      throw DomainError("loss picture", fmt::format("the loss of step {} is not finite", i + 1));
    }
  }
  const auto [low, high] = std::ranges::minmax(losses);
  const double room = std::max(0.05 * (high - low), 1e-6 * std::max(std::abs(high), 1.0));
  Plot plot{.low = low >= 0 && low - room < 0.25 * high ? 0 : low - room,
            .high = high + room,
            .first = 1,
            .last = static_cast<double>(losses.size())};
  out << opened(plot.left + plot.width + 24, plot.top + plot.height + 52, title)
      << written(plot.left, 26, escaped(title), 14, Anchor::start, false, "ink") << axes(plot)
      << curve(plot, bins_of(losses, static_cast<std::size_t>(plot.width / 2))) << "</svg>\n";
}

}  // namespace tapehead
