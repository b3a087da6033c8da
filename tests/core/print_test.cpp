#include <gtest/gtest.h>

#include <sstream>

#include <tapehead/core/gradient.h>
#include <tapehead/core/print.h>

#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using T = Tape<double>;

TEST(TapePrinting, ShowsOneLineANodeAndTheTotals) {
  T tape;
  const V x = tape.input(A::zeros({2, 3}), "x");
  {
    const Scope<double> scope(tape, "layer 1");
    const V w = tape.input(A::zeros({2, 3}), "w");
    const V q = port(x, "query");
    const V y = tiny::exp(tiny::mul(q, w));
    tiny::mul(V(A::ones({2, 3})), y);
  }
  EXPECT_EQ(to_string(tape),
            "node  op     label          inputs  shape\n"
            "  %0  input  x                      (2, 3)\n"
            "  %1  input  layer 1/w              (2, 3)\n"
            "  %2  port   layer 1/query  %0      (2, 3)\n"
            "  %3  mul    layer 1        %2, %1  (2, 3)\n"
            "  %4  exp    layer 1        %3      (2, 3)\n"
            "  %5  mul    layer 1        -, %4   (2, 3)\n"
            "6 nodes: 2 inputs, 4 ops; 1 outputs kept for rules, 48 bytes\n");
}

TEST(TapePrinting, OfAnEmptyTape) {
  T tape;
  EXPECT_EQ(to_string(tape),
            "node  op  label  inputs  shape\n"
            "0 nodes: 0 inputs, 0 ops; 0 outputs kept for rules, 0 bytes\n");
}

TEST(TapePrinting, ShowsWhatAGradientRecorded) {
  Tape<float> tape;
  const Var<float> x = tape.input(Array<float>::scalar(3));
  gradient(tiny::square(tiny::square(x)), x);
  EXPECT_EQ(to_string(tape),
            "node  op      label     inputs  shape\n"
            "  %0  input                     ()\n"
            "  %1  square            %0      ()\n"
            "  %2  square            %1      ()\n"
            "  %3  mul     gradient  -, %1   ()\n"
            "  %4  scale   gradient  %3      ()\n"
            "  %5  mul     gradient  %4, %0  ()\n"
            "  %6  scale   gradient  %5      ()\n"
            "7 nodes: 1 inputs, 6 ops; 0 outputs kept for rules, 0 bytes\n");
}

TEST(TapePrinting, AlignsLongNumbers) {
  T tape;
  V y = tape.input(A::scalar(1));
  for (int i = 0; i < 100; ++i) y = tiny::scale(y, 1.0);
  const std::string text = to_string(tape);
  EXPECT_NE(text.find("\n %99  scale         %98     ()\n%100  scale         %99     ()\n"),
            std::string::npos)
      << text;
}

TEST(TapePrinting, GoesToStreamsAndToStandardOutput) {
  T tape;
  tape.input(A::zeros({4}), "x");
  std::ostringstream stream;
  stream << tape;
  EXPECT_EQ(stream.str(), to_string(tape));
  testing::internal::CaptureStdout();
  print(tape);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), to_string(tape));
}

}  // namespace
}  // namespace tapehead
