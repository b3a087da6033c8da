#pragma once
// A tape as text: what every user of a tape does first.

#include <iosfwd>
#include <string>

#include <tapehead/core/tape.h>

namespace tapehead {

// One line a node (index, op, label, inputs, shape), then the totals. An input that is not recorded shows as
// "-".
template <std::floating_point T>
std::string to_string(const Tape<T>& tape);
template <std::floating_point T>
std::ostream& operator<<(std::ostream& stream, const Tape<T>& tape);
template <std::floating_point T>
void print(const Tape<T>& tape);  // to standard output

}  // namespace tapehead
