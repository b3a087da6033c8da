#include <tools/check/shapes.h>

#include <algorithm>

#include <fmt/format.h>

#include <tapehead/nn/file_error.h>
#include <tools/check/layout.h>

namespace tapehead::check {

Shapes::Shapes(Dump dump, const Settings& said, Layout layout)
    : dump_(std::move(dump)), said_(said), layout_(layout) {
  require_something();
  find_sizes();
  for (const DumpTensor& tensor : dump_.tensors) {
    if (const Role* role = role_of(tensor.name)) require_shape(tensor, *role);
  }
}

void fail_tensor(const Dump& dump, const DumpTensor& tensor, const std::string& expected,
                 const std::string& got) {
  const std::string also = tensor.name == tensor.given_name ? "" : " (" + tensor.name + ")";
  throw Unusable(fmt::format("{}: tensor {}{}: expected {}, and is {}", dump.origin,
                             detail::printable(tensor.given_name), also, expected, got));
}

const DumpTensor* Shapes::first_of(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    if (const DumpTensor* tensor = find(name)) return tensor;
  }
  return nullptr;
}

void Shapes::require_something() const {
  bool any = false;
  for (const DumpTensor& tensor : dump_.tensors) {
    const Role* role = role_of(tensor.name);
    if (!role) continue;
    if (tensor.shape.size() == 0) fail_shape(tensor, "elements");
    if (role->judged && !number_type(tensor.type))
      fail_tensor(dump_, tensor, "f64, f32, bf16 or f16", tensor.type);
    any = any || role->judged;
  }
  if (!any) fail("nothing to judge: expected output, weights, lse or a gradient such as grad_query");
  if (find("projection")) return;
  if (find("w_query")) {
    for (const char* name : {"x", "w_key", "w_value"}) require(name, "beside w_query");
    return;
  }
  if (!query()) fail("no query: expected a tensor query (or q), x with w_query, or projection");
  if (!key()) fail("no key: expected a tensor key (or k) beside the query");
  const bool needs_value = first_of({"output", "grad_query", "grad_key", "grad_value"}) != nullptr;
  if (needs_value) require("value", "beside the query");
}

void Shapes::require(const char* name, const char* why) const {
  if (!find(name)) fail(fmt::format("no {0}: expected a tensor {0} {1}", name, why));
}

// Query heads where no axis is theirs.
Index Shapes::heads_by_others() const {
  if (said_.heads) return *said_.heads;
  const DumpTensor *weights = find("weights"), *lse = find("lse");
  if (weights && weights->shape.rank() >= 4) return weights->shape.dim(-3);
  if (lse && lse->shape.rank() >= 3) return lse->shape.dim(-2);
  for (const char* name : {"sink", "slopes"}) {
    if (const DumpTensor* tensor = find(name); tensor && tensor->shape.rank() == 1) return tensor->shape[0];
  }
  const DumpTensor* output = find("output");
  if (projected() && output && output->shape.rank() >= 4) {
    return output->shape.dim(layout_ == Layout::BLHD ? -2 : -3);
  }
  return 1;
}

Shape Shapes::split(const DumpTensor& tensor, Index heads, const char* letters) const {
  const std::optional<Shape> shape = heads_shape(tensor.shape, layout_, heads);
  if (shape) return *shape;
  fail_shape(tensor, fmt::format("{} in the layout {}{}", letters, name_of(layout_),
                                 layout_ == Layout::BLD ? fmt::format(" with {} heads", heads) : ""));
}

void Shapes::find_sizes() {
  projected() ? find_projected_sizes() : find_plain_sizes();
  require_heads("heads", said_.heads, sizes_.H);
  require_heads("kv_heads", said_.kv_heads, sizes_.Hk);
  if (sizes_.H % sizes_.Hk != 0) {
    fail(fmt::format("query heads in the layout {}: expected a multiple of the {} key heads, and are {}",
                     name_of(layout_), sizes_.Hk, sizes_.H));
  }
}

void Shapes::require_heads(const char* setting, std::optional<Index> said, Index found) const {
  if (said && *said != found) {
    fail(fmt::format("setting {}: expected {}, as the shapes have it, and is {}", setting, found, *said));
  }
}

void Shapes::find_plain_sizes() {
  const DumpTensor &q = *query(), &k = *key();
  const bool is_flat = layout_ == Layout::BLD;
  const Shape of_query = split(q, is_flat ? heads_by_others() : 1, "(B, H, L, D)");
  sizes_.B = of_query[0], sizes_.H = of_query[1], sizes_.L = of_query[2], sizes_.D = of_query[3];
  sizes_.samples = q.shape.rank() >= 4 ? q.shape.first(q.shape.rank() - 3) : Shape{sizes_.B};
  const Index key_width = k.shape.rank() == 0 ? 0 : k.shape.dim(-1);
  const Index by_width = key_width % sizes_.D == 0 ? key_width / sizes_.D : sizes_.H;
  const Shape of_key = split(k, is_flat ? said_.kv_heads.value_or(by_width) : 1, "(B, Hk, S, D)");
  sizes_.Hk = of_key[1], sizes_.S = of_key[2];
  const DumpTensor* v = find("value");
  sizes_.E = v ? split(*v, sizes_.Hk, "(B, Hk, S, E)")[3] : 1;
}

void Shapes::find_projected_sizes() {
  sizes_.H = heads_by_others();
  const DumpTensor* fused = find("projection");
  const DumpTensor& x = fused ? *fused : *find("x");
  if (x.shape.rank() < 2 || x.shape.rank() > 3) fail_shape(x, "(B, L, width)");
  sizes_.B = x.shape.rank() == 3 ? x.shape[0] : 1;
  sizes_.samples = {sizes_.B};
  sizes_.L = sizes_.S = x.shape.dim(-2);
  if (fused) {
    sizes_.Hk = said_.kv_heads.value_or(sizes_.H);
    const Index parts = sizes_.H + 2 * sizes_.Hk;
    if (x.shape.dim(-1) % parts != 0) fail_shape(x, fmt::format("(B, L, {} x D): H + 2 Hk heads", parts));
    sizes_.D = sizes_.E = x.shape.dim(-1) / parts;
    return;
  }
  if (const DumpTensor* y = find("y"); y && y->shape.rank() >= 2) sizes_.S = y->shape.dim(-2);
  sizes_.D = columns("w_query") / sizes_.H;
  sizes_.Hk = said_.kv_heads.value_or(sizes_.D > 0 ? std::max<Index>(columns("w_key") / sizes_.D, 1) : 1);
  sizes_.E = columns("w_value") / sizes_.Hk;
  if (sizes_.D == 0 || columns("w_query") % sizes_.H != 0) {
    fail_shape(*find("w_query"), fmt::format("(M, H D) with {} heads", sizes_.H));
  }
}

Index Shapes::columns(const char* name) const {
  const DumpTensor& w = *find(name);
  if (w.shape.rank() != 2) fail_shape(w, "a matrix (in, out)");
  return w.shape[1];
}

Shape Shapes::scores() const { return {sizes_.B, sizes_.H, sizes_.L, sizes_.S}; }

bool Shapes::is_exact(const Shape& given, const Shape& wanted) const {  // wanted (B, H, ...)
  const Shape tail = wanted.last(wanted.rank() - 2);
  const Shape heads = Shape{sizes_.H}.followed_by(tail);
  return given == wanted || given == sizes_.samples.followed_by(heads) || (sizes_.B == 1 && given == heads) ||
         (sizes_.H == 1 && given == Shape{sizes_.B}.followed_by(tail)) ||
         (sizes_.B == 1 && sizes_.H == 1 && given == tail);
}

bool Shapes::is_heads_last(const Shape& given) const {  // rows as (B, L, H)
  return given == Shape{sizes_.B, sizes_.L, sizes_.H} ||
         (sizes_.B == 1 && given == Shape{sizes_.L, sizes_.H});
}

std::optional<Shape> Shapes::score_shape(const Shape& given) const {
  const int rank = given.rank();
  const Index L = sizes_.L, S = sizes_.S, B = sizes_.B;
  if (rank <= 4 && broadcasts_to(given, scores())) {
    Shape shape;
    for (int axis = 0; axis < 4 - rank; ++axis) shape = shape.followed_by({1});
    return shape.followed_by(given);
  }
  if (given == Shape{B * sizes_.H, L, S}) return scores();
  if (given == Shape{B, L, S}) return Shape{B, 1, L, S};
  if (given == Shape{B, S}) return Shape{B, 1, 1, S};
  if (broadcasts_to(given, sizes_.samples.followed_by({sizes_.H, L, S}))) {
    return Shape{B}.followed_by(given.last(3));
  }
  return std::nullopt;
}

Layout Shapes::layout_of(const DumpTensor& tensor) const {
  const bool is_merged = tensor.shape.rank() <= 3 && (layout_ == Layout::BHLD || layout_ == Layout::BLHD) &&
                         (projected() || query()->shape.rank() > 3);
  return is_merged ? Layout::BLD : layout_;
}

bool Shapes::is_projected_output(const DumpTensor& tensor) const {
  return find("w_out") && tensor.shape.rank() <= 3;
}

Shape Shapes::shape_of(Form form) const {
  const auto& [B, H, Hk, L, S, D, E, samples] = sizes_;
  if (form == Form::query) return {B, H, L, D};
  if (form == Form::key) return {B, Hk, S, D};
  return form == Form::value ? Shape{B, Hk, S, E} : Shape{B, H, L, E};
}

void Shapes::require_shape(const DumpTensor& tensor, const Role& role) const {
  const auto& [B, H, Hk, L, S, D, E, samples] = sizes_;
  const Shape& given = tensor.shape;
  const auto expect = [&](bool fits, const char* letters, const Shape& wanted) {
    if (!fits) fail_shape(tensor, fmt::format("{} {}", letters, to_string(wanted)));
  };
  switch (role.form) {
    case Form::query:
    case Form::key:
    case Form::value:
    case Form::output:
      return require_layout(tensor, role.form, given);
    case Form::scores:
      return expect(is_exact(given, scores()), "(B, H, L, S)", scores());
    case Form::broadcast:
      return expect(score_shape(given).has_value(), "a shape that broadcasts to (B, H, L, S)", scores());
    case Form::rows:
      return expect(is_exact(given, {B, H, L}) || is_exact(given, {B, H, L, 1}) || is_heads_last(given),
                    "(B, H, L)", {B, H, L});
    case Form::heads:
      return expect(given == Shape{H}, "(H)", {H});
    case Form::samples:
      return expect(layout_ == Layout::THD || given.size() == B, "(B)", {B});
    case Form::width:
      return expect(given == Shape{D}, "(D)", {D});
    case Form::queries:
      return expect(broadcasts_to(given, {B, L}), "(B, L)", {B, L});
    case Form::keys:
      return expect(broadcasts_to(given, {B, S}), "(B, S)", {B, S});
    case Form::partial_output:
      if (given.rank() < 2) expect(false, "(P, B, H, L, E)", {1, B, H, L, E});
      return require_layout(tensor, Form::output, given.last(given.rank() - 1));
    case Form::partial_rows:
      return expect(given.rank() == 4 && given.last(3) == Shape{B, H, L}, "(P, B, H, L)", {1, B, H, L});
    case Form::partial_ends:
      return expect(given.rank() == 1, "(P)", {1});
    case Form::other:
      if (const std::optional<Shape> wanted = projection_shape(tensor.name)) {
        const bool one_sample = B == 1 && wanted->rank() == 3 && given == wanted->last(2);
        expect(given == *wanted || one_sample, "in the layout of the format", *wanted);
      }
  }
}

void Shapes::require_layout(const DumpTensor& tensor, Form form, const Shape& given) const {
  if (form == Form::output && is_projected_output(tensor)) return;
  const Shape wanted = shape_of(form);
  const std::optional<Shape> shape = heads_shape(given, layout_of(tensor), wanted[1]);
  if (shape == std::optional(wanted)) return;
  const char* letters = form == Form::query   ? "(B, H, L, D)"
                        : form == Form::key   ? "(B, Hk, S, D)"
                        : form == Form::value ? "(B, Hk, S, E)"
                                              : "(B, H, L, E)";
  fail_tensor(dump_, tensor,
              fmt::format("{} {} in the layout {}", letters, to_string(wanted), name_of(layout_)),
              to_string(given));
}

std::optional<Shape> Shapes::projection_shape(std::string_view name) const {
  if (name.starts_with("grad_")) name.remove_prefix(5);
  const auto& [B, H, Hk, L, S, D, E, samples] = sizes_;
  const auto width_of = [&](const char* input) { return find(input)->shape.dim(-1); };
  if (name == "projection") return Shape{B, L, (H + 2 * Hk) * D};
  if (!find("x")) return std::nullopt;
  const char* source = find("y") ? "y" : "x";
  if (name == "x") return Shape{B, L, width_of("x")};
  if (name == "y" && find("y")) return Shape{B, S, width_of("y")};
  if (name == "w_query") return Shape{width_of("x"), H * D};
  if (name == "w_key") return Shape{width_of(source), Hk * D};
  if (name == "w_value") return Shape{width_of(source), Hk * E};
  if (name == "b_query") return Shape{H * D};
  if (name == "b_key") return Shape{Hk * D};
  if (name == "b_value") return Shape{Hk * E};
  if (!find("w_out") || find("w_out")->shape.rank() != 2) return Shape{H * E, find("output")->shape.dim(-1)};
  return name == "w_out" ? Shape{H * E, find("w_out")->shape[1]} : Shape{find("w_out")->shape[1]};
}

}  // namespace tapehead::check
