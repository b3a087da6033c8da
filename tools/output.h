#pragma once
// The end of every verb that prints.

namespace tapehead::tools {

// Throws FileError when standard output cannot be written, as on a full disk.
void flush_output();

}  // namespace tapehead::tools
