#pragma once
// The data of the page: what its script reads, as JSON.

#include <string>

#include <tapehead/inspect/table.h>

namespace tapehead {

// One JSON document, fit to stand inside a script element: it holds no "<".
std::string page_data(const TapeTable& table);

}  // namespace tapehead
