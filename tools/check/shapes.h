#pragma once
// The sizes of a dump in one layout, and whether all of its tensors fit to them.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <tools/check/dump.h>
#include <tools/check/roles.h>
#include <tools/check/settings.h>

namespace tapehead::check {

struct Sizes {
  Index B = 0, H = 0, Hk = 0, L = 0, S = 0, D = 0, E = 0;
  Shape samples{};  // leading axes of the query, whose product is B
};

// Throws Unusable, `origin: tensor NAME: expected ..., and is ...`.
[[noreturn]] void fail_tensor(const Dump& dump, const DumpTensor& tensor, const std::string& expected,
                              const std::string& got);

class Shapes {
 public:
  // Throws Unusable when there is nothing to judge or to compute it from, and for a tensor or a number of
  // heads that does not fit the others in this layout. Reads shapes alone.
  Shapes(Dump dump, const Settings& said, Layout layout);

  const Dump& dump() const { return dump_; }
  const Sizes& sizes() const { return sizes_; }
  Layout layout() const { return layout_; }
  const DumpTensor* find(std::string_view name) const { return dump_.find(name); }
  const DumpTensor* first_of(std::initializer_list<std::string_view> names) const;
  bool projected() const { return find("projection") || find("w_query"); }

  // Of a form in the layout BHLD.
  Shape scores() const;
  Shape shape_of(Form form) const;  // query, key, value, output

  // The layout of one tensor: an output may have its heads merged.
  Layout layout_of(const DumpTensor& tensor) const;
  bool is_projected_output(const DumpTensor& tensor) const;  // after the last projection

  // Whether a shape says the same as (B, H, ...): an axis of 1 head or 1 sample may be missing.
  bool is_exact(const Shape& given, const Shape& wanted) const;
  // Where a mask or bias lies in (B, H, L, S); more axes of samples than one are taken together. None when it
  // does not broadcast to it.
  std::optional<Shape> score_shape(const Shape& given) const;
  // What x, w_query and the like must be; none for a name that is none of them.
  std::optional<Shape> projection_shape(std::string_view name) const;

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Unusable(dump_.origin + ": " + what); }
  [[noreturn]] void fail_shape(const DumpTensor& tensor, const std::string& expected) const {
    fail_tensor(dump_, tensor, expected, to_string(tensor.shape));
  }
  const DumpTensor* query() const { return first_of({"query_unnormed", "query_unrotated", "query"}); }
  const DumpTensor* key() const { return first_of({"key_unnormed", "key_unrotated", "key"}); }
  void require_something() const;
  void require(const char* name, const char* why) const;
  Index heads_by_others() const;
  Shape split(const DumpTensor& tensor, Index heads, const char* letters) const;
  void find_sizes();
  void require_heads(const char* setting, std::optional<Index> said, Index found) const;
  void find_plain_sizes();
  void find_projected_sizes();
  Index columns(const char* name) const;
  bool is_heads_last(const Shape& given) const;
  void require_shape(const DumpTensor& tensor, const Role& role) const;
  void require_layout(const DumpTensor& tensor, Form form, const Shape& given) const;

  const Dump dump_;
  const Settings& said_;
  const Layout layout_;
  Sizes sizes_;
};

}  // namespace tapehead::check
