#pragma once
// The mistakes of the catalogue as plantings: for a call, the knobs that make it. A mistake with several
// readings has several forms.

#include <string>
#include <vector>

#include "tools/planted/wrong.h"

namespace tapehead::planted {

struct Planting {
  std::string id, variant, form, family;
  bool backward = false;                                  // leaves output, weights and log-sum-exp right
  std::function<std::optional<Wrong>(const Call&)> make;  // nothing where it does not apply
  bool only_alike = false;  // not planted: another reading, that may equal what is
};

const std::vector<Planting>& plantings();

std::vector<Planting> scale_plantings();
std::vector<Planting> mask_plantings();
std::vector<Planting> softmax_plantings();
std::vector<Planting> head_plantings();
std::vector<Planting> position_plantings();
std::vector<Planting> backward_plantings();
std::vector<Planting> numeric_plantings();
std::vector<Planting> layout_plantings();
std::vector<Planting> state_plantings();

// Forms that are equal on paper: no mistake.
std::vector<Planting> equal_plantings();

}  // namespace tapehead::planted
