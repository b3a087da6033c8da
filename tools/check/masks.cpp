#include <tools/check/masks.h>

#include <limits>

#include <tools/check/layout.h>

namespace tapehead::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::string word_of(MaskMeans means) {
  constexpr const char* words[] = {"allowed", "blocked", "additive"};
  return words[static_cast<std::size_t>(means)];
}

ReadMask read_mask(const Shapes& shapes, const DumpTensor& tensor, MaskMeans means) {
  const bool is_real = number_type(tensor.type).has_value();
  if (means == MaskMeans::additive && !is_real)
    fail_tensor(shapes.dump(), tensor, "numbers to add", tensor.type);
  Array<double> numbers = in_scores(shapes, tensor.read());
  if (means == MaskMeans::additive) return {numbers, true};
  for (const double x : numbers.values()) {
    if (x != 0 && x != 1) {
      fail_tensor(shapes.dump(), tensor, "0 and 1, as mask_means is not additive", number_text(x));
    }
  }
  if (means == MaskMeans::blocked) {
    for (double& x : numbers.mutable_values()) x = 1 - x;
  }
  return {numbers, false};
}

ReadMask both(ReadMask a, ReadMask b) {
  const bool additive = a.additive || b.additive;
  const Shape shape = broadcast_shapes("mask", "mask", a.numbers.shape(), "padding", b.numbers.shape());
  for (ReadMask* mask : {&a, &b}) {
    mask->numbers = repeated(mask->numbers, shape);
    if (!additive || mask->additive) continue;
    for (double& x : mask->numbers.mutable_values()) x = x != 0 ? 0 : -infinity;
  }
  const double* other = b.numbers.data();
  for (double& x : a.numbers.mutable_values()) {
    x = additive ? x + *other : x * *other;
    ++other;
  }
  return {a.numbers, additive};
}

}  // namespace

std::optional<ReadMask> mask_of(const Shapes& shapes, const Settings& said,
                                std::vector<std::pair<std::string, std::string>>& assumed) {
  const auto read = [&](const DumpTensor& tensor, MaskMeans of_truth, const char* setting) {
    const MaskMeans unsaid = number_type(tensor.type) ? MaskMeans::additive : of_truth;
    if (!said.mask_means) assumed.emplace_back(setting, word_of(unsaid));
    return read_mask(shapes, tensor, said.mask_means.value_or(unsaid));
  };
  std::optional<ReadMask> mask;
  if (const DumpTensor* tensor = shapes.find("mask")) mask = read(*tensor, MaskMeans::allowed, "mask_means");
  const DumpTensor* keys = shapes.find("key_padding_mask");
  if (!keys) return mask;
  const Shape shape{shapes.sizes().B, shapes.sizes().S};
  if (keys->shape != shape) {
    fail_tensor(shapes.dump(), *keys, "(B, S) " + to_string(shape), to_string(keys->shape));
  }
  DumpTensor padding = *keys;
  padding.read = [read = keys->read, shape] { return read().reshape({shape[0], 1, 1, shape[1]}); };
  const ReadMask more = read(padding, MaskMeans::blocked, "key_padding_mask");
  return mask ? both(*mask, more) : more;
}

Array<double> in_scores(const Shapes& shapes, const Array<double>& numbers) {
  const Shape shape = *shapes.score_shape(numbers.shape());
  if (shape.size() == numbers.size()) return numbers.reshape(shape);
  return repeated(numbers, shapes.sizes().samples.followed_by(shape.last(3))).reshape(shape);
}

}  // namespace tapehead::check
