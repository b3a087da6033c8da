#pragma once
// The page: a tape in one HTML file that needs nothing else.

#include <iosfwd>

#include <tapehead/inspect/table.h>

namespace tapehead {

// Writes the table as one HTML document with its styles, its program and its data inside; it asks the network
// for nothing. Arrays become pictures of at most 64 by 64 cells, fewer where many arrays would make the page
// larger than 2 MB; arrays of up to 128 numbers are given in full. Names from the tape may hold any bytes:
// they cannot end the script that holds the data, and what is not UTF-8 is replaced. Throws LogicError when
// the layout cannot be made.
void write_html(std::ostream& out, const TapeTable& table);

}  // namespace tapehead
