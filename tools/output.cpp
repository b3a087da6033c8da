#include <tools/output.h>

#include <cstdio>
#include <iostream>

#include <tapehead/nn/file_error.h>

namespace tapehead::tools {

void flush_output() {
  if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout)) {
    throw FileError("standard output", "cannot be written");
  }
}

}  // namespace tapehead::tools
