#pragma once
// Pictures that open anywhere: SVG 1.1 with its own ground, readable in light and dark.

#include <iosfwd>
#include <span>
#include <string_view>

#include <tapehead/inspect/table.h>

namespace tapehead {

// Writes the attention weights of sample 0 as heat maps, one a head, query by key, with tokens along the
// edges where they have room; a map has at most 64 by 64 cells, each the mean of a block of weights where
// there are more. What the mask does not allow is hatched. A weight is shown by one of 32 shades. Throws
// DomainError when the table holds no weights.
void write_attention_svg(std::ostream& out, const TapeTable& table);

// Writes the loss of each training step, from step 1 on, as a curve: where steps share a pixel their mean,
// with their range behind it. Throws DomainError when there is no loss, or one that is not finite.
void write_loss_svg(std::ostream& out, std::string_view title, std::span<const double> losses);

}  // namespace tapehead
