#include "tools/planted/plantings.h"

namespace tapehead::planted {

const std::vector<Planting>& plantings() {
  static const std::vector<Planting> all = [] {
    std::vector<Planting> list;
    for (const auto& family :
         {scale_plantings(), mask_plantings(), softmax_plantings(), head_plantings(), position_plantings(),
          backward_plantings(), numeric_plantings(), layout_plantings(), state_plantings()})
      list.insert(list.end(), family.begin(), family.end());
    return list;
  }();
  return all;
}

}  // namespace tapehead::planted
