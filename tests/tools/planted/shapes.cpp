#include "tools/planted/shapes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace tapehead::planted {
namespace {

class Maker {
 public:
  Maker(const Sizes& n, Type type, unsigned seed) : random_(seed) {
    c_.type = type;
    c_.B = n.B, c_.H = n.H, c_.Hk = n.Hk, c_.L = n.L, c_.S = n.S, c_.D = n.D, c_.E = n.E;
    c_.query = normal(c_.B, c_.H, c_.L, c_.D, spread()), c_.key = normal(c_.B, c_.Hk, c_.S, c_.D, spread());
    c_.value = normal(c_.B, c_.Hk, c_.S, c_.E, 1);
    c_.upstream = normal(c_.B, c_.H, c_.L, c_.E, 1);
  }

  Call take() { return std::move(c_); }
  Call& call() { return c_; }

  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  Index integer(Index low, Index high) { return std::uniform_int_distribution<Index>(low, high)(random_); }
  bool coin() { return integer(0, 1) == 1; }

  Grid normal(Index a, Index b, Index c, Index d, double deviation) {
    Grid x(a, b, c, d);
    for (double& number : x.numbers)
      number = rounded(deviation * std::normal_distribution<double>()(random_), c_.type);
    return x;
  }

  void causal(Causal kind) { c_.causal = kind; }
  void window(Index left, std::optional<Index> right) { c_.window_left = left, c_.window_right = right; }

  // Each row of each grid (a,b) sees key `i + 1 mod S`, so that none is empty, and others by chance.
  void boolean_mask(Index a, Index b, bool padding) {
    if (c_.mask_kind != MaskKind::blocked) c_.mask_kind = MaskKind::allowed;
    c_.mask = Grid(a, b, padding ? 1 : c_.L, c_.S);
    each(c_.mask, [&](Index x, Index y, Index i, Index j) {
      const bool allowed = padding ? j < c_.S - 1 - x % 2 : uniform(0, 1) < 0.6 || j == (i + 1) % c_.S;
      c_.mask(x, y, i, j) = allowed == (c_.mask_kind != MaskKind::blocked) ? 1 : 0;
    });
  }
  void additive_mask() {
    c_.mask_kind = MaskKind::additive;
    c_.mask = normal(1, 1, c_.L, c_.S, 1);
    each(c_.mask, [&](Index, Index, Index i, Index j) {
      const double chance = uniform(0, 1);
      if (chance < 0.25 && j != (i + 1) % c_.S) c_.mask(0, 0, i, j) = -INFINITY;
      if (chance > 0.5) c_.mask(0, 0, i, j) = 0;
    });
  }
  void lengths() {
    c_.key_lengths.clear();
    for (Index b = 0; b < c_.B; ++b) c_.key_lengths.push_back(c_.S - b % 2 - (c_.B == 1 ? 1 : 0));
  }
  void segments() {
    c_.query_segments.clear(), c_.key_segments.clear();
    for (Index b = 0; b < c_.B; ++b) {
      for (Index i = 0; i < c_.L; ++i) c_.query_segments.push_back(i * 2 >= c_.L ? 1 : 0);
      for (Index j = 0; j < c_.S; ++j) c_.key_segments.push_back(j * 2 >= c_.S ? 1 : 0);
    }
  }
  void bias(Index a, Index b) { c_.bias = normal(a, b, c_.L, c_.S, 1.5); }
  // What is past the length of its sample is padding: nobody reads its gradient.
  void rows_end() {
    c_.query_lengths.clear();
    for (Index b = 0; b < c_.B; ++b) c_.query_lengths.push_back(std::max<Index>(c_.L - 1 - b % 2, 1));
  }
  // Queries two apart, keys one apart, by sample further on.
  void positions() {
    c_.query_positions.clear(), c_.key_positions.clear();
    for (Index b = 0; b < c_.B; ++b) {
      for (Index i = 0; i < c_.L; ++i) c_.query_positions.push_back(static_cast<double>(2 * i + 3 + 4 * b));
      for (Index j = 0; j < c_.S; ++j) c_.key_positions.push_back(static_cast<double>(j + j / 2 + 4 * b));
    }
  }
  void sink() {
    c_.sink.clear();
    for (Index h = 0; h < c_.H; ++h) c_.sink.push_back(rounded(0.5 + uniform(-0.4, 0.9), c_.type));
  }
  // The two-part rule: of the next lower power of two, then every second one of twice that.
  void slopes() {
    c_.slopes.clear();
    Index power = 1;
    while (2 * power <= c_.H) power *= 2;
    for (Index h = 0; h < c_.H; ++h) {
      const double exponent = h < power
                                  ? static_cast<double>(h + 1) / static_cast<double>(power)
                                  : static_cast<double>(2 * (h - power) + 1) / static_cast<double>(2 * power);
      c_.slopes.push_back(rounded(std::exp2(-8 * exponent), c_.type));
    }
  }
  void turn(Turn kind, Index width, double base) {
    c_.turn = kind, c_.width = width, c_.base = base;
    c_.start_query = 11 + std::max<Index>(c_.S - c_.L, 0), c_.start_key = 11;
  }
  void norm(Norm kind, bool gains, double gain) {
    c_.norm = kind, c_.norm_eps = kind == Norm::rms ? 1e-6 : 0;
    c_.query_gain.clear(), c_.key_gain.clear();
    if (!gains) return;
    for (Index d = 0; d < c_.D; ++d) {
      c_.query_gain.push_back(rounded(gain * uniform(0.5, 2), c_.type));
      c_.key_gain.push_back(rounded(gain * uniform(0.5, 2), c_.type));
    }
  }
  void dropout(double rate, bool train) {
    c_.dropout = rate, c_.train = train;
    c_.keep = Grid();
    if (!train) return;
    c_.keep = Grid(c_.B, c_.H, c_.L, c_.S);
    for (double& number : c_.keep.numbers) number = uniform(0, 1) < rate ? 0 : 1;
  }
  void projections(bool self) {
    const Index M = 5;
    c_.projection = Grid();
    c_.x = normal(c_.B, 1, c_.L, M, 1), c_.y = Grid();
    if (!self) c_.y = normal(c_.B, 1, c_.S, M, 1);
    c_.w_query = normal(1, 1, M, c_.H * c_.D, 0.6), c_.w_key = normal(1, 1, M, c_.Hk * c_.D, 0.6);
    c_.w_value = normal(1, 1, M, c_.Hk * c_.E, 0.6);
    project_all();
  }
  // Again, after other features changed query, key and value.
  void project_all() {
    if (!c_.projection.empty()) c_.cut_projection(c_.cut_by_head);
    if (c_.x.empty()) return;
    const Grid& source = c_.y.empty() ? c_.x : c_.y;
    project(c_.x, c_.w_query, c_.query);
    project(source, c_.w_key, c_.key), project(source, c_.w_value, c_.value);
  }
  void fused_projection(bool by_head) {
    c_.x = c_.y = c_.w_query = c_.w_key = c_.w_value = Grid();
    c_.projection = normal(c_.B, 1, c_.L, (c_.H + 2 * c_.Hk) * c_.D, spread());
    c_.cut_by_head = by_head;
    c_.cut_projection(by_head);
    c_.upstream = Grid();
  }
  // Values that nobody may read: of keys past the end of the first sample that ends before them.
  void poison() {
    const Index b = c_.B == 1 ? 0 : 1;
    for (Index g = 0; g < c_.Hk; ++g)
      for (Index e = 0; e < c_.E; ++e) c_.value(b, g, c_.S - 1, e) = std::nan("");
  }
  void scores_rise(bool falling) {
    each(c_.key, [&](Index b, Index g, Index j, Index d) {
      const double place = static_cast<double>(falling ? c_.S - 1 - j : j) / static_cast<double>(c_.S);
      c_.key(b, g, j, d) = rounded(0.5 * c_.key(b, g, j, d) + (d == 0 ? 3 * place : 0), c_.type);
    });
    each(c_.query, [&](Index b, Index h, Index i, Index d) {
      if (d == 0) c_.query(b, h, i, d) = rounded(3 + 0.2 * c_.query(b, h, i, d), c_.type);
    });
  }

 private:
  // Scores of a size of about 2 to 3 with the scale 1 / sqrt(D).
  static double spread() { return 1.5; }

  void project(const Grid& x, const Grid& w, Grid& y) {
    each(y, [&](Index b, Index h, Index i, Index d) {
      double sum = 0;
      for (Index m = 0; m < x.extents[3]; ++m) sum += x(b, 0, i, m) * w(0, 0, m, h * y.extents[3] + d);
      y(b, h, i, d) = rounded(sum, c_.type);
    });
  }

  std::mt19937 random_;
  Call c_;
};

void mask_blocked(Maker& m) {
  m.call().mask_kind = MaskKind::blocked;
  m.boolean_mask(m.call().B, 1, false);
}

void everything(Maker& m) {  // all that the probe of the catalogue asks for
  m.causal(Causal::bottom_right), m.window(3, {}), m.lengths(), m.segments();
  m.boolean_mask(1, 1, false), m.bias(1, m.call().H), m.sink();
  m.call().softcap = 2;
  m.turn(Turn::half, m.call().D >= 4 ? 4 : 0, 100);
  m.norm(Norm::rms, true, 1);
}

const std::vector<std::pair<std::string, std::function<void(Maker&)>>>& all_features() {
  using M = Maker&;
  static const std::vector<std::pair<std::string, std::function<void(Maker&)>>> list = {
      {"plain", [](M) {}},
      {"scale given", [](M m) { m.call().scale = 0.21; }},
      {"scale 1", [](M m) { m.call().scale = 1, m.norm(Norm::l2, true, 3); }},
      {"causal bottom-right", [](M m) { m.causal(Causal::bottom_right); }},
      {"causal top-left", [](M m) { m.causal(Causal::top_left); }},
      {"causal offset", [](M m) { m.causal(Causal::offset), m.call().offset = 1; }},
      {"causal and window", [](M m) { m.causal(Causal::bottom_right), m.window(2, {}); }},
      {"window to the left", [](M m) { m.window(1, 0); }},
      {"window to both sides", [](M m) { m.window(2, 2); }},
      {"mask of each sample", [](M m) { m.boolean_mask(m.call().B, 1, false); }},
      {"mask of all", [](M m) { m.boolean_mask(1, 1, false); }},
      {"mask blocks", mask_blocked},
      {"mask of 0 and 1", [](M m) { m.boolean_mask(m.call().B, 1, false), m.call().mask_in_numbers = true; }},
      {"padding mask", [](M m) { m.boolean_mask(m.call().B, 1, true); }},
      {"additive mask", [](M m) { m.additive_mask(); }},
      {"causal and padding", [](M m) { m.causal(Causal::bottom_right), m.lengths(); }},
      {"causal and mask", [](M m) { m.causal(Causal::bottom_right), m.boolean_mask(1, 1, false); }},
      {"lengths", [](M m) { m.lengths(); }},
      {"lengths of both", [](M m) { m.lengths(), m.rows_end(); }},
      {"segments", [](M m) { m.segments(); }},
      {"cap", [](M m) { m.call().softcap = 2; }},
      {"cap and mask", [](M m) { m.call().softcap = 1.5, m.boolean_mask(1, 1, false); }},
      {"cap and bias", [](M m) { m.call().softcap = 2, m.bias(1, m.call().H); }},
      {"bias", [](M m) { m.bias(1, m.call().H); }},
      {"bias of each sample", [](M m) { m.bias(m.call().B, m.call().H); }},
      {"bias before scale", [](M m) { m.bias(1, 1), m.call().bias_before_scale = true; }},
      {"far-off bias",
       [](M m) {
         m.bias(1, 1);
         each(m.call().bias, [&](Index, Index, Index i, Index j) {
           if (i % 2 == 0) m.call().bias(0, 0, i, j) -= m.call().type == Type::f64 ? 1000 : 250;
         });
       }},
      {"sink", [](M m) { m.sink(); }},
      {"sink and causal", [](M m) { m.sink(), m.causal(Causal::bottom_right); }},
      {"slopes", [](M m) { m.slopes(), m.call().start_query = std::max<Index>(m.call().S - m.call().L, 0); }},
      {"slopes and causal",
       [](M m) {
         m.slopes(), m.causal(Causal::bottom_right);
         m.call().start_query = std::max<Index>(m.call().S - m.call().L, 0);
       }},
      {"rope half", [](M m) { m.turn(Turn::half, 0, 100); }},
      {"rope neighbour", [](M m) { m.turn(Turn::neighbour, 0, 100), m.causal(Causal::bottom_right); }},
      {"rope partial", [](M m) { m.turn(Turn::half, m.call().D / 4 * 2, 100); }},
      {"rope partial neighbour", [](M m) { m.turn(Turn::neighbour, m.call().D / 4 * 2, 50); }},
      {"rope at positions", [](M m) { m.turn(Turn::half, 0, 100), m.positions(); }},
      {"slopes at positions", [](M m) { m.slopes(), m.positions(); }},
      {"norm rms", [](M m) { m.norm(Norm::rms, true, 1); }},
      {"norm l2", [](M m) { m.norm(Norm::l2, false, 1), m.call().scale = 6; }},
      {"norm and rope", [](M m) { m.norm(Norm::rms, true, 1), m.turn(Turn::half, 0, 100); }},
      {"equal gains and rope", [](M m) { m.norm(Norm::rms, false, 1), m.turn(Turn::half, 0, 100); }},
      {"dropout", [](M m) { m.dropout(0.25, true); }},
      {"dropout in evaluation", [](M m) { m.dropout(0.4, false), m.call().upstream = Grid(); }},
      {"gradient of lse",
       [](M m) { m.call().upstream_lse = m.normal(m.call().B, m.call().H, m.call().L, 1, 1); }},
      {"gradient of weights",
       [](M m) { m.call().upstream_weights = m.normal(m.call().B, m.call().H, m.call().L, m.call().S, 1); }},
      {"lse of base 2", [](M m) { m.call().lse_base_2 = true; }},
      {"parts",
       [](M m) {
         m.call().part_ends = {m.call().S / 3, m.call().S};
       }},
      {"parts and causal",
       [](M m) {
         m.call().part_ends = {m.call().S / 4, m.call().S / 2, m.call().S};
         m.causal(Causal::bottom_right);
       }},
      {"self projections", [](M m) { m.projections(true); }},
      {"cross projections", [](M m) { m.projections(false); }},
      {"fused projection", [](M m) { m.fused_projection(false); }},
      {"fused projection by head", [](M m) { m.fused_projection(true); }},
      {"tiled heads", [](M m) { m.call().tiled = true; }},
      {"rising scores", [](M m) { m.scores_rise(false); }},
      {"falling scores", [](M m) { m.scores_rise(true); }},
      {"empty rows",
       [](M m) {
         m.boolean_mask(m.call().B, 1, false);
         for (Index j = 0; j < m.call().S; ++j) m.call().mask(0, 0, 0, j) = 0;
       }},
      {"empty rows by two masks",
       [](M m) {
         m.causal(Causal::top_left), m.boolean_mask(1, 1, false);
         for (Index i = 0; i < m.call().L; ++i)
           for (Index j = 0; j <= i && j < m.call().S; ++j) m.call().mask(0, 0, i, j) = i > 0 ? 1 : 0;
       }},
      {"empty rows twice",  // the first row is of a document without keys, and its mask blocks all
       [](M m) {
         m.segments(), m.boolean_mask(1, 1, false);
         for (Index b = 0; b < m.call().B; ++b)
           m.call().query_segments[static_cast<std::size_t>(b * m.call().L)] = 2;
         for (Index j = 0; j < m.call().S; ++j) m.call().mask(0, 0, 0, j) = 0;
       }},
      {"poisoned padding", [](M m) { m.lengths(), m.poison(); }},
      {"large products",
       [](M m) {
         for (Grid* x : {&m.call().query, &m.call().key})
           for (double& number : x->numbers) number *= 64;
         m.call().scale = 1.0 / 1024;
       }},
      {"large scores",
       [](M m) {
         for (double& number : m.call().query.numbers) number *= 8;
       }},
      {"low scores",
       [](M m) {
         m.boolean_mask(m.call().B, 1, false), m.bias(1, 1);
         for (double& number : m.call().bias.numbers) number = rounded(number * 4 - 20000, m.call().type);
       }},
      {"everything", everything},
  };
  return list;
}

bool fits(const Sizes& n, const std::string& feature) {
  if (feature == "self projections" || feature.starts_with("fused projection"))
    return n.L == n.S && (feature == "self projections" || (n.D == n.E && n.H > 1));
  if (feature.starts_with("parts")) return n.S >= 4;
  if (feature.starts_with("rope") || feature.find("and rope") != std::string::npos || feature == "everything")
    return n.D % 2 == 0 && n.D >= 4;
  if (feature == "tiled heads") return n.H > n.Hk && n.Hk > 1;
  if (feature.starts_with("poisoned") || feature == "padding mask") return n.S > 2;
  return true;
}

}  // namespace

std::vector<Sizes> sizes(unsigned set) {
  if (set == 0) {
    return {{"probe", 2, 6, 2, 3, 7, 8, 5},   {"square", 2, 3, 3, 5, 5, 6, 4},
            {"tall", 1, 4, 2, 7, 5, 8, 8},    {"one head", 2, 1, 1, 6, 6, 5, 3},
            {"decode", 3, 4, 4, 1, 9, 8, 8},  {"groups of two", 2, 8, 4, 4, 6, 4, 6},
            {"wide", 1, 2, 1, 6, 11, 20, 16}, {"even", 2, 4, 4, 8, 8, 16, 16}};
  }
  if (set == 2) {
    return {{"two rows", 2, 4, 4, 2, 6, 6, 6}, {"five", 1, 5, 1, 5, 8, 12, 10},
            {"flat", 3, 2, 2, 7, 7, 8, 8},     {"nine keys", 2, 6, 3, 6, 9, 10, 4},
            {"deep", 1, 2, 2, 4, 12, 32, 8},   {"sixteen heads", 1, 16, 4, 3, 5, 4, 4}};
  }
  return {{"long row", 2, 5, 5, 4, 13, 10, 7},  {"groups of four", 1, 8, 2, 5, 6, 12, 12},
          {"small", 3, 2, 2, 4, 4, 4, 4},       {"queries lead", 2, 3, 1, 9, 4, 6, 5},
          {"one sample", 1, 3, 3, 7, 7, 24, 8}, {"groups of three", 2, 9, 3, 6, 10, 8, 8}};
}

std::vector<std::string> features() {
  std::vector<std::string> names;
  for (const auto& [name, change] : all_features()) names.push_back(name);
  return names;
}

namespace {

// What two features ask for together and the format leaves open is not asked for.
void settle(Call& c) {
  if (c.bias_before_scale) c.softcap = 0;
  if (!c.sink.empty() || c.dropout > 0) c.part_ends.clear();
  if (c.train) c.upstream_weights = Grid();
  if (c.turn == Turn::none && c.slopes.empty()) c.query_positions.clear(), c.key_positions.clear();
  if (!c.projection.empty() || (c.dropout > 0 && !c.train)) c.upstream = Grid();
  for (Grid* upstream : {&c.upstream, &c.upstream_weights, &c.upstream_lse}) {
    each(*upstream, [&](Index b, Index h, Index i, Index n) {
      if (!c.is_row(b, i)) (*upstream)(b, h, i, n) = 0;
    });
  }
}

}  // namespace

std::optional<Call> make_call(const Sizes& n, const std::vector<std::string>& features, Type type,
                              unsigned seed) {
  Maker maker(n, type, seed);
  std::string text = n.name;
  for (const std::string& feature : features) {
    if (!fits(n, feature)) return {};
    for (const auto& [name, change] : all_features())
      if (name == feature) change(maker);
    text.append(", ").append(feature);
  }
  maker.project_all();
  settle(maker.call());
  maker.call().shape = text;
  return maker.take();
}

std::vector<Call> calls(unsigned set) {
  std::vector<Call> all;
  const std::vector<Sizes> every = sizes(set);
  const std::vector<std::string> names = features();
  for (std::size_t f = 0; f < names.size(); ++f) {
    for (std::size_t s = 0; s < every.size(); ++s) {
      const auto type = static_cast<Type>((f + s) % 4);
      if (const auto call =
              make_call(every[s], {names[f]}, type, static_cast<unsigned>(100 * f + s + 1000 * set)))
        all.push_back(*call);
    }
  }
  return all;
}

}  // namespace tapehead::planted
