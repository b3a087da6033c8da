#pragma once
// Tables of claims for a person and for a program.

#include <string>
#include <vector>

#include <tools/contract/contract.h>

namespace tapehead::contract {

// A table and, for every claim that fails, what was found and which mistake explains it. `kept` is whether
// the dumps stay.
std::string text_of(const Table& table, bool kept);

// One line of JSON: {"schema": 1, "subjects": [...], "failed": n}. An error of null is infinite.
std::string json_of(const std::vector<Table>& tables, bool kept);

int failures(const Table& table);  // claims that fail in some type
bool nothing_tried(const Table& table);

}  // namespace tapehead::contract
