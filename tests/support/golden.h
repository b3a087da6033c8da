#pragma once
// A reference case: numbers that another program made, in tests/data/golden (or made/, see there).
//
//   const Golden golden("sdpa_rect");
//   golden.array("query"), golden.index("target"), golden.mask("mask"), golden.meta("scale"),
//   golden.number("scale")

#include <string>
#include <string_view>

#include <tapehead/nn/safetensors.h>

namespace tapehead {

class Golden {
 public:
  explicit Golden(std::string_view name, std::string_view folder = "golden")
      : file_(std::string(TAPEHEAD_TEST_DATA "/")
                  .append(folder)
                  .append("/")
                  .append(name)
                  .append(".safetensors")) {}

  // Each throws FileError or std::out_of_range when the case has nothing of this name.
  Array<double> array(std::string_view name) const { return file_.read<double>(name); }
  Array<Index> index(std::string_view name) const { return file_.read<Index>(name); }
  Array<bool> mask(std::string_view name) const { return file_.read<bool>(name); }
  const std::string& meta(const std::string& name) const { return file_.metadata().at(name); }
  double number(const std::string& name) const { return std::stod(meta(name)); }

  bool has(std::string_view name) const { return file_.contains(name); }
  bool has_meta(const std::string& name) const { return file_.metadata().count(name) > 0; }

 private:
  SafetensorsFile file_;
};

}  // namespace tapehead
