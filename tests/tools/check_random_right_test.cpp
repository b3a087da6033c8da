// Right dumps agree: of every feature and type, features together, under both ways of rounding, and computed
// in every form that is equal on paper.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>

#include "tools/planted/judge.h"

namespace tapehead::planted {
namespace {

void expect_agreement(const std::vector<Case>& cases) {
  Tally tally;
  for (const Case& dump : cases) tally.add(dump, judge(dump));
  std::cout << tally.table();
  for (const std::string& complaint : tally.complaints) std::cout << complaint << '\n';
  EXPECT_EQ(tally.count(Outcome::right), cases.size());
}

TEST(CheckRandomRight, AThousandRightDumpsAgree) { expect_agreement(right_dumps(1, 1000)); }

TEST(CheckRandomRight, FormsThatAreEqualOnPaperAgree) {
  std::set<std::string> forms;
  std::vector<Case> cases;
  for (const unsigned set : {0U, 1U}) {
    for (Case& dump : equal_forms(set)) forms.insert(dump.form), cases.push_back(std::move(dump));
  }
  EXPECT_EQ(forms.size(), equal_plantings().size());
  expect_agreement(cases);
}

// The same dumps with one number moved are alarms: agreement is not what is always said.
TEST(CheckRandomRight, ANumberThatIsOffIsNoAgreement) {
  for (Case& dump : right_dumps(5, 20)) {
    Array<double>& output = dump.tensors.at("output").numbers;
    double largest = 0;
    for (const double x : output.values()) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
    output.mutable_values()[0] += largest + 1;
    EXPECT_EQ(judge(dump).outcome, Outcome::false_alarm) << dump.text();
  }
}

}  // namespace
}  // namespace tapehead::planted
