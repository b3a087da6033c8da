#include <tapehead/inspect/svg.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <regex>
#include <sstream>

#include <tapehead/core/errors.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

// Rows of softmax over the keys that a causal mask allows.
AttentionTable attention_of(Index heads, Index length) {
  AttentionTable attention;
  attention.label = "layer 1";
  attention.weights.shape = {1, heads, length, length};
  attention.scores = ArrayNumbers{attention.weights.shape, {}};
  for (Index row = 0; row < heads * length; ++row) {
    std::vector<double> mass;
    double sum = 0;
    for (Index j = 0; j < length; ++j) {
      const double score = j <= row % length ? 2 * std::sin(static_cast<double>(5 * row + 3 * j)) : -INFINITY;
      attention.scores->numbers.push_back(score);
      mass.push_back(std::exp(score));
      sum += mass.back();
    }
    for (const double x : mass) attention.weights.numbers.push_back(x / sum);
  }
  return attention;
}

std::string picture_of(const AttentionTable& attention) {
  TapeTable table;
  table.attention.push_back(attention);
  std::ostringstream out;
  write_attention_svg(out, table);
  return out.str();
}

std::string curve_of(const std::vector<double>& losses) {
  std::ostringstream out;
  write_loss_svg(out, "task: loss", losses);
  return out.str();
}

std::vector<std::smatch> all(const std::string& text, const std::regex& pattern) {
  return {std::sregex_iterator(text.begin(), text.end(), pattern), {}};
}

// What is wrong with a document as XML: tags that do not pair, text that is no text. Empty when nothing is.
std::string fault_of(const std::string& document) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < document.size()) {
    const std::size_t tag = std::min(document.find('<', at), document.size());
    const std::string text = document.substr(at, tag - at);
    if (std::regex_search(text, std::regex("&(?!(lt|gt|amp|quot);)"))) return "a bare & in " + text;
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return "a control character";
    }
    if (tag == document.size()) break;
    const std::size_t end = document.find('>', tag);
    if (end == document.npos) return "a tag without an end";
    const std::string inside = document.substr(tag + 1, end - tag - 1);
    const std::string name = inside.substr(0, inside.find_first_of(" /"));
    if (inside.find('<') != inside.npos) return "a < in a tag";
    if (std::ranges::count(inside, '"') % 2 != 0) return "quotes that do not pair in " + inside;
    if (inside[0] == '/') {
      if (open.empty() || open.back() != inside.substr(1)) return "an end of " + inside.substr(1);
      open.pop_back();
    } else if (!inside.ends_with('/')) {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : "no end of " + open.back();
}

TEST(Fault, IsFound) {
  EXPECT_EQ(fault_of("<a x=\"1\"><b/>t &lt; u</a>\n"), "");
  for (const char* wrong :
       {"<a>", "<a><b></a></b>", "<a>&nbsp;</a>", "<a>\x01</a>", "<a x=\"1></a>", "<a x=\"<\"></a>", "<a"}) {
    EXPECT_NE(fault_of(wrong), "") << wrong;
  }
}

// The part of the picture that is one head.
std::string head_of(const std::string& picture, Index head) {
  const std::size_t start = picture.find(std::string(">head ").append(std::to_string(head)).append("<"));
  return picture.substr(start, picture.find(">head ", start + 1) - start);
}

// What each cell of a head is painted with, by the rectangles "Mx yhwvhh-wz" of paths: group 1 of the pattern
// is how opaque a path is, all when blank, group 2 its rectangles.
std::vector<double> cells_of(const std::string& head, Index length, const std::regex& path) {
  const double cell = std::stod(all(head, std::regex("<rect class=\"line\"[^>]*width=\"([0-9.]+)\""))[0][1]) /
                      static_cast<double>(length);
  std::vector<double> cells(static_cast<std::size_t>(length * length), 0);
  for (auto it = std::sregex_iterator(head.begin(), head.end(), path); it != std::sregex_iterator(); ++it) {
    const std::string shapes = (*it)[2];
    const std::regex rectangle("M([0-9.]+) ([0-9.]+)h([0-9.]+)");
    for (auto r = std::sregex_iterator(shapes.begin(), shapes.end(), rectangle); r != std::sregex_iterator();
         ++r) {
      const auto in_cells = [&](int part) {
        return static_cast<Index>(std::lround(std::stod((*r)[static_cast<std::size_t>(part)]) / cell));
      };
      for (Index j = 0; j < in_cells(3); ++j) {
        const std::string shade = (*it)[1];
        cells[static_cast<std::size_t>(in_cells(2) * length + in_cells(1) + j)] +=
            shade == " " ? 1 : std::stod(shade);
      }
    }
  }
  return cells;
}

const std::regex painted("fill-opacity=\"([0-9.]+)\" d=\"([^\"]*)\"");

TEST(AttentionPicture, PaintsEachWeightInItsShade) {
  const Index length = 7;
  const AttentionTable attention = attention_of(3, length);
  const std::string picture = picture_of(attention);
  double darkest = 0;
  for (const double x : attention.weights.numbers) darkest = std::max(darkest, x);
  for (Index head = 0; head < 3; ++head) {
    const std::vector<double> cells = cells_of(head_of(picture, head), length, painted);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const double weight = attention.weights.numbers[static_cast<std::size_t>(head) * cells.size() + i];
      // Half of one of 32 shades, and three digits of the opacity.
      EXPECT_NEAR(cells[i], weight / darkest, 1.0 / 64 + 5e-4) << "head " << head << ", cell " << i;
    }
  }
  EXPECT_NE(cells_of(head_of(picture, 0), length, painted), cells_of(head_of(picture, 1), length, painted));
}

TEST(AttentionPicture, HatchesWhatTheMaskDoesNotAllow) {
  const Index length = 6;
  AttentionTable attention = attention_of(1, length);
  const std::regex hatched("<path fill=\"url.#hatch.\"( )d=\"([^\"]*)\"");
  const std::vector<double> cells = cells_of(head_of(picture_of(attention), 0), length, hatched);
  for (Index i = 0; i < length; ++i) {
    for (Index j = 0; j < length; ++j)
      EXPECT_EQ(cells[static_cast<std::size_t>(i * length + j)], j > i) << i << ", " << j;
  }
  attention.scores.reset();
  EXPECT_EQ(picture_of(attention).find("url(#hatch)"), std::string::npos);
}

TEST(AttentionPicture, WritesTokensAlongBothEdges) {
  AttentionTable attention = attention_of(1, 4);
  attention.query_tokens = {"the", "<b>&\"", " ", "\xFF\x01"};
  attention.key_tokens = {"k0", "k1", "k2", "k3"};
  const std::string picture = picture_of(attention);
  for (const char* text : {">the<", ">&lt;b&gt;&amp;&quot;<", ">\u2423<", ">\uFFFD\uFFFD<", ">k0<", ">k3<"}) {
    EXPECT_NE(picture.find(text), picture.npos) << text;
  }
  EXPECT_EQ(fault_of(picture), "");
  attention.key_tokens.pop_back();
  EXPECT_EQ(picture_of(attention).find(">the<"), std::string::npos) << "not when they are too few";
}

TEST(AttentionPicture, OfALongSequenceIsSmallAndSaysWhatACellIs) {
  const std::string picture = picture_of(attention_of(2, 300));
  EXPECT_LT(picture.size(), 200'000u);
  EXPECT_NE(picture.find("cells are means of weights"), picture.npos);
  EXPECT_EQ(fault_of(picture), "");
}

TEST(AttentionPicture, WorksAtTheEdges) {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{2, 3}, Shape{2, 1, 5}, Shape{3, 2, 2, 2}, Shape{1, 2, 0, 4}}) {
    AttentionTable attention;
    attention.weights = {shape, std::vector<double>(static_cast<std::size_t>(shape.size()), 0.5)};
    EXPECT_EQ(fault_of(picture_of(attention)), "") << to_string(shape);
  }
  AttentionTable attention = attention_of(1, 3);
  attention.weights.numbers[0] = NAN;
  EXPECT_EQ(fault_of(picture_of(attention)), "");
  EXPECT_TRUE(raises<DomainError>([] { write_attention_svg(std::cout, {}); }, {"no attention weights"}));
}

// The points of the curve itself: step and loss in pixels.
std::vector<std::pair<double, double>> points_of(const std::string& picture) {
  const std::regex curve("class=\"curve\"[^>]* d=\"([^\"]*)\""), point("[ML]([0-9.]+) ([0-9.]+)");
  std::smatch found;
  EXPECT_TRUE(std::regex_search(picture, found, curve));
  const std::string path = found[1];
  std::vector<std::pair<double, double>> points;
  for (auto it = std::sregex_iterator(path.begin(), path.end(), point); it != std::sregex_iterator(); ++it) {
    points.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  }
  return points;
}

TEST(LossPicture, DrawsEachLossToScale) {
  const std::vector<double> losses = {4, 3, 3.5, 1, 0.5};
  const std::string picture = curve_of(losses);
  EXPECT_EQ(fault_of(picture), "");
  const auto points = points_of(picture);
  ASSERT_EQ(points.size(), losses.size());
  const double scale = (points[0].second - points[4].second) / (losses[0] - losses[4]);
  EXPECT_LT(scale, 0) << "a larger loss is higher up";
  for (std::size_t i = 0; i < losses.size(); ++i) {
    // Coordinates have one digit behind the point.
    EXPECT_NEAR(points[i].second - points[0].second, scale * (losses[i] - losses[0]), 0.11);
    EXPECT_NEAR(points[i].first - points[0].first,
                static_cast<double>(i) * (points[4].first - points[0].first) / 4, 0.11);
  }
}

TEST(LossPicture, OfManyStepsShowsMeansAndTheirRange) {
  std::vector<double> losses;
  for (int i = 0; i < 100'000; ++i) losses.push_back(2 + (i % 2 == 0 ? 1 : -1));
  const std::string picture = curve_of(losses);
  EXPECT_LT(picture.size(), 30'000u);
  const auto points = points_of(picture);
  for (const auto& [step, loss] : points)
    EXPECT_NEAR(loss, points[0].second, 1) << "the mean of each bin is about 2";
  EXPECT_NE(picture.find("class=\"range\""), picture.npos);
}

TEST(LossPicture, HasRoundNumbersOnItsAxes) {
  const std::string picture = curve_of({4.1, 3, 2, 0.3});
  for (const char* tick : {">0<", ">1<", ">2<", ">3<", ">4<"})
    EXPECT_NE(picture.find(tick), picture.npos) << tick;
}

TEST(LossPicture, WorksAtTheEdges) {
  for (const std::vector<double>& losses :
       {std::vector<double>{2}, {0, 0}, {1, 1, 1}, {-3, -5}, {1e-12, 2e-12}, {1e300, 1}}) {
    const std::string picture = curve_of(losses);
    EXPECT_EQ(fault_of(picture), "");
    EXPECT_EQ(picture.find("nan"), picture.npos);
    EXPECT_EQ(picture.find("inf"), picture.npos);
  }
  EXPECT_TRUE(raises<DomainError>([] { curve_of({}); }, {"no loss"}));
  EXPECT_TRUE(raises<DomainError>([] { curve_of({1, NAN}); }, {"step 2"}));
}

}  // namespace
}  // namespace tapehead
