#include <tapehead/core/gradient_check.h>

#include <ostream>
#include <sstream>

namespace tapehead {

std::string_view to_string(GradientVerdict verdict) {
  switch (verdict) {
    case GradientVerdict::right:
      return "right";
    case GradientVerdict::constant:
      return "constant";
    case GradientVerdict::wrong:
      return "wrong";
    case GradientVerdict::no_digits:
      return "no digits left in this type";
    case GradientVerdict::not_repeatable:
      return "not repeatable";
    case GradientVerdict::kink:
      return "at a kink";
  }
  return "";
}

namespace {

void write_ops(std::ostream& stream, const std::vector<std::string>& ops) {
  constexpr std::size_t most = 12;
  stream << "\n    ops on the way:";
  if (ops.empty()) stream << " none";
  for (std::size_t i = 0; i < std::min(ops.size(), most); ++i) stream << (i > 0 ? ", " : " ") << ops[i];
  if (ops.size() > most) stream << " and " << ops.size() - most << " more";
}

void write(std::ostream& stream, const GradientFinding& finding) {
  stream << "  order " << finding.order << ", " << finding.name << " " << to_string(finding.shape) << ": "
         << to_string(finding.verdict);
  if (finding.plain) stream << " in gradient_values (gradient is right)";
  const bool right = finding.verdict == GradientVerdict::right;
  if (right || finding.verdict == GradientVerdict::constant) {
    if (right) stream << ", " << finding.by_rule << " to within " << finding.bound;
    if (!right && finding.order == 1) write_ops(stream, finding.ops);
    return;
  }
  stream << "\n    ";
  if (finding.element >= 0) {
    stream << "worst at " << position_text(finding.shape, finding.element);
    if (finding.output_element >= 0) stream << " for element " << finding.output_element << " of the outputs";
    stream << ": ";
  }
  stream.precision(17);
  if (finding.verdict == GradientVerdict::not_repeatable) {
    stream << finding.by_rule << " and then " << finding.by_difference;
    stream.precision(6);
    return;
  }
  stream << "by the rule " << finding.by_rule << ", by differences " << finding.by_difference;
  if (finding.verdict == GradientVerdict::kink) {
    stream << ", " << finding.slopes[0] << " on the left and " << finding.slopes[1] << " on the right";
  }
  stream.precision(3);
  stream << "; step " << finding.step << ", known to " << finding.bound;
  stream.precision(6);
  write_ops(stream, finding.ops);
}

}  // namespace

std::string to_string(const GradientReport& report) {
  std::ostringstream stream;
  stream << (report.ok ? "gradients are right" : "gradients are not right");
  for (const GradientFinding& finding : report.findings) {
    stream << "\n";
    write(stream, finding);
  }
  return stream.str();
}

std::ostream& operator<<(std::ostream& stream, const GradientReport& report) {
  return stream << to_string(report);
}

}  // namespace tapehead
