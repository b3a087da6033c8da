#include <tapehead/nn/safetensors.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include <tapehead/core/memory.h>

#include "support/expect_error.h"
#include "support/files.h"

namespace tapehead {
namespace {

class SafetensorsFiles : public FilesTest {
 protected:
  // The bytes of a file with this header and buffer.
  static std::string bytes_of(std::string_view header, std::string_view buffer = {}) {
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes.append(header).append(buffer);
  }

  // A file whose one tensor "x" has this type, shape (as JSON) and bytes.
  SafetensorsFile one_tensor(const std::string& type, const std::string& shape,
                             std::string_view buffer) const {
    const std::string entry = R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":[0,)" +
                              std::to_string(buffer.size()) + "]}";
    put(path(), bytes_of(R"({"x":)" + entry + "}", buffer));
    return SafetensorsFile(path());
  }
};

// ---- Round trips

TEST_F(SafetensorsFiles, EveryTypeComesBackBitForBit) {
  const double huge = std::numeric_limits<double>::max(), tiny = std::numeric_limits<double>::denorm_min();
  const auto d = Array<double>::of({{1.5, -0.0, INFINITY}, {std::nan("7"), huge, tiny}});
  const auto f = Array<float>::of({{0.1f, -0.0f}, {-INFINITY, std::nanf("3")}});
  const auto i = Array<Index>::of({INT64_MIN, -1, 0, INT64_MAX});
  const auto b = Array<bool>::of({{true}, {false}, {true}});
  SafetensorsWriter writer;
  writer.add("b", b)
      .add("f", f)
      .add("d", d)
      .add("i", i)
      .metadata("step", "12")
      .metadata("who", "me \"\n\u00e9");
  writer.write(path());

  const SafetensorsFile file{fs::path(path())};
  EXPECT_EQ(file.path(), path());
  EXPECT_EQ(file.names(), (std::vector<std::string>{"d", "i", "f", "b"}));  // wide elements first
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"step", "12"}, {"who", "me \"\n\u00e9"}}));
  EXPECT_TRUE(file.contains("d"));
  EXPECT_FALSE(file.contains("e"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_EQ(file.type("d"), "F64");
  EXPECT_EQ(file.type("f"), "F32");
  EXPECT_EQ(file.type("i"), "I64");
  EXPECT_EQ(file.type("b"), "BOOL");
  EXPECT_EQ(file.shape("b"), (Shape{3, 1}));
  EXPECT_TRUE(same_bits(file.read<double>("d"), d));
  EXPECT_TRUE(same_bits(file.read<float>("f"), f));
  EXPECT_TRUE(same_bits(file.read<Index>("i"), i));
  EXPECT_TRUE(same_bits(file.read<bool>("b"), b));
}

TEST_F(SafetensorsFiles, EveryRankComesBack) {
  SafetensorsWriter writer;
  std::vector<Index> extents;
  std::vector<Array<double>> arrays;
  for (int rank = 0; rank <= max_rank; ++rank) {
    const Shape shape{std::span<const Index>(extents)};
    arrays.push_back(Array<double>::arange(shape.size()).reshape(shape));
    writer.add("rank" + std::to_string(rank), arrays.back());
    extents.push_back(1 + rank % 3);
  }
  writer.write(path());
  const SafetensorsFile file(path());
  for (int rank = 0; rank <= max_rank; ++rank) {
    const auto array = file.read<double>("rank" + std::to_string(rank));
    EXPECT_EQ(array.rank(), rank);
    EXPECT_TRUE(same_bits(array, arrays[static_cast<std::size_t>(rank)]));
  }
}

TEST_F(SafetensorsFiles, EmptyTensorsAndFilesComeBack) {
  SafetensorsWriter writer;
  writer.write(path());
  EXPECT_TRUE(SafetensorsFile(path()).names().empty());

  writer.add("default", Array<double>()).add("none", Array<float>::zeros({2, 0, 3}));
  writer.write(path("empty"));
  EXPECT_EQ(SafetensorsFile(path("empty")).read<float>("none").shape(), (Shape{2, 0, 3}));
  writer.add("some", Array<double>::of({4.0})).add("", Array<bool>::zeros({0}));
  writer.write(path());
  const SafetensorsFile file(path());
  EXPECT_EQ(file.read<double>("default").shape(), Shape{0});
  EXPECT_EQ(file.read<double>("none").shape(), (Shape{2, 0, 3}));
  EXPECT_EQ(file.read<bool>("").shape(), Shape{0});
  EXPECT_EQ(file.read<double>("some").item(), 4.0);
}

TEST_F(SafetensorsFiles, AlignedTensorsAreReadWithoutACopyAndOutliveTheFile) {
  const Index count = 1 << 16;
  SafetensorsWriter().add("w", Array<double>::arange(count)).add("f", Array<float>::ones({3})).write(path());
  reset_memory_peak();
  Array<double> w;
  {
    const SafetensorsFile file(path());
    w = file.read<double>("w");
    EXPECT_TRUE(w.shares_storage_with(file.read<double>("w")));
  }
  EXPECT_LT(memory_statistics().largest, 4096);
  fs::remove(path());
  EXPECT_EQ(w(count - 1), static_cast<double>(count - 1));
  EXPECT_FALSE(w.sole_owner());
  w.set({0}, 7.0);  // on a copy
  EXPECT_EQ(w(0), 7.0);
}

TEST_F(SafetensorsFiles, MisalignedTensorsAreCopied) {
  const std::vector<double> values{1.25, -3.5};
  const std::string header = R"({"b":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
                             R"("x":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})";
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    put(path(), bytes_of(header + std::string(spaces, ' '), std::string(1, '\1') + raw(values)));
    EXPECT_EQ(SafetensorsFile(path()).read<double>("x").to_vector(), values);
  }
}

TEST_F(SafetensorsFiles, ReplacingAFileLeavesReadersOfTheOldOneAlone) {
  SafetensorsWriter().add("w", Array<double>::of({1, 2})).write(path());
  const auto old = SafetensorsFile(path()).read<double>("w");
  SafetensorsWriter().add("w", old).add("v", Array<double>::of({3})).write(path());
  EXPECT_EQ(old(1), 2.0);
  EXPECT_EQ(SafetensorsFile(path()).read<double>("w")(1), 2.0);
}

TEST_F(SafetensorsFiles, ReplacingAFileKeepsItsPermissions) {
  SafetensorsWriter().add("w", Array<double>::of({1})).write(path());
  for (const unsigned mode : {0600u, 0666u, 0640u}) {
    fs::permissions(path(), static_cast<fs::perms>(mode));
    SafetensorsWriter().add("w", Array<double>::of({2})).write(path());
    EXPECT_EQ(fs::status(path()).permissions(), static_cast<fs::perms>(mode));
  }
}

TEST_F(SafetensorsFiles, ALinkStaysAndWhatItLeadsToIsReplaced) {
  fs::create_directory(path("folder"));
  SafetensorsWriter().add("w", Array<double>::of({1})).write(path("folder/real"));
  fs::create_symlink("folder/real", path("link"));
  SafetensorsWriter().add("w", Array<double>::of({2})).write(path("link"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(SafetensorsFile(path("folder/real")).read<double>("w").item(), 2.0);
  EXPECT_EQ(files_in_folder().size(), 2u);
}

TEST_F(SafetensorsFiles, EscapesInNamesAreRead) {
  const std::string escaped = R"(\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\ude00\u0000)";
  put(path(),
      bytes_of("{\"" + escaped + R"(":{"dtype":"U8","shape":[ ],"data_offsets" : [0, 1]} })" + "\n", "a"));
  const std::string name = std::string("\"\\/\b\f\n\r\tA\u00e9\u20ac\U0001F600") + '\0';
  const SafetensorsFile file(path());
  EXPECT_EQ(file.names(), std::vector<std::string>{name});
  SafetensorsWriter().add(name, file.read<Index>(name)).metadata(name, name).write(path("again"));
  EXPECT_EQ(SafetensorsFile(path("again")).read<Index>(name).item(), 'a');
  EXPECT_EQ(SafetensorsFile(path("again")).metadata().at(name), name);
}

// ---- Conversions

double half_by_the_standard(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

double brain_float_by_the_standard(std::uint16_t bits) {
  const int exponent = (bits >> 7) & 255, fraction = bits & 127;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 255) return fraction ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -133);
  return sign * std::ldexp(128 + fraction, exponent - 134);
}

TEST_F(SafetensorsFiles, Every16BitFloatWidensExactly) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  using Rule = double (*)(std::uint16_t);
  for (const auto& [type, expected] : {std::pair<std::string, Rule>("F16", half_by_the_standard),
                                       std::pair<std::string, Rule>("BF16", brain_float_by_the_standard)}) {
    const auto file = one_tensor(type, "[256,256]", raw(all));
    const auto wide = file.read<double>("x");
    const auto narrow = file.read<float>("x");
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double y = expected(all[i]);
      const double w = wide.data()[i], n = static_cast<double>(narrow.data()[i]);
      if (std::isnan(y)) {
        ASSERT_TRUE(std::isnan(w) && std::isnan(n)) << type << " " << i;
        ASSERT_EQ(std::signbit(w), all[i] >> 15 == 1) << type << " " << i;
      } else {
        ASSERT_TRUE(w == y && n == y && std::signbit(w) == std::signbit(y)) << type << " " << i;
        ASSERT_EQ(std::signbit(n), std::signbit(y)) << type << " " << i;
      }
    }
  }
}

// The 16 bits for which the distance to x is least, by trying all of them; of two, the even one. Infinity
// stands at the value that would follow the largest one.
std::uint16_t nearest_by_search(double x, double (*value)(std::uint16_t), int infinity) {
  const auto value_of = [&](int bits) { return value(static_cast<std::uint16_t>(bits)); };
  const double beyond = 2 * value_of(infinity - 1) - value_of(infinity - 2);
  int best = 0;
  double least = INFINITY;
  for (int bits = 0; bits <= infinity; ++bits) {
    const double distance = std::abs(std::abs(x) - (bits == infinity ? beyond : value_of(bits)));
    if (distance < least || (distance == least && bits % 2 == 0)) best = bits, least = distance;
  }
  return static_cast<std::uint16_t>(best | (std::signbit(x) ? 0x8000 : 0));
}

TEST_F(SafetensorsFiles, FloatsAreWrittenIn16BitsRoundedToNearestEven) {
  using Rule = double (*)(std::uint16_t);
  struct Format {
    const char* type;
    Rule value;
    int infinity;
  };
  for (const auto& [type, value, infinity] :
       {Format{"F16", half_by_the_standard, 0x7C00}, Format{"BF16", brain_float_by_the_standard, 0x7F80}}) {
    // Numbers at, just below and just above the middle of two neighbours, where a rule shows what it is.
    std::vector<double> numbers{0.0, -0.0, 1e-300, -5e-324, 1e300, -1e300, 0x1p-1022};
    for (const int low :
         {0, 1, 2, 3, 127, 128, 1022, 1023, 1024, 1025, 15359, 15360, 16255, infinity - 2, infinity - 1}) {
      const double a = value(static_cast<std::uint16_t>(low));
      const double b = low + 1 == infinity ? 2 * a - value(static_cast<std::uint16_t>(low - 1))
                                           : value(static_cast<std::uint16_t>(low + 1));
      const double middle = (a + b) / 2;
      for (const double x : {a, middle, std::nextafter(middle, 0), std::nextafter(middle, INFINITY), b}) {
        numbers.push_back(x);
        numbers.push_back(-x);
      }
    }
    SafetensorsWriter().add("x", Array<double>::from(numbers), type).write(path());
    EXPECT_EQ(SafetensorsFile(path()).type("x"), type);
    const std::string written = get(path());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, written.data() + written.size() - 2 * (numbers.size() - i), 2);
      EXPECT_EQ(bits, nearest_by_search(numbers[i], value, infinity)) << type << " of " << numbers[i];
    }
  }
}

TEST_F(SafetensorsFiles, Every16BitFloatComesBackFromFloatAndDouble) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const std::string type : {"F16", "BF16"}) {
    const auto file = one_tensor(type, "[65536]", raw(all));
    SafetensorsWriter()
        .add("d", file.read<double>("x"), type)
        .add("f", file.read<float>("x"), type)
        .write(path("again"));
    std::vector<std::uint16_t> quiet = all;  // a signalling NaN that is converted becomes a quiet one
    const int fraction = type == "F16" ? 0x3FF : 0x7F, exponent = 0x7FFF & ~fraction;
    for (std::uint16_t& bits : quiet) {
      if ((bits & exponent) == exponent && (bits & fraction) != 0)
        bits = static_cast<std::uint16_t>(bits | (fraction + 1) >> 1);
    }
    const std::string written = get(path("again"));
    EXPECT_TRUE(written.ends_with(raw(quiet) + raw(quiet))) << type;
  }
}

TEST_F(SafetensorsFiles, ATypeThatIsNotWrittenIsAnError) {
  SafetensorsWriter writer;
  const auto x = Array<float>::of({1, 2});
  for (const char* type : {"I64", "BOOL", "F8_E4M3", "f32", "U8"}) {
    EXPECT_TRUE(raises<LogicError>([&] { writer.add("x", x, type); }, {"x: float is not written as", type}));
  }
  EXPECT_TRUE(raises<LogicError>([&] { writer.add("i", Array<Index>::of({1}), "I32"); }, {"int64", "I32"}));
  EXPECT_TRUE(raises<LogicError>([&] { writer.add("b", Array<bool>::of({true}), "U8"); }, {"bool", "U8"}));
  writer.add("x", x, "F64").add("y", Array<double>::of({0.1}), "F32").write(path());
  EXPECT_EQ(SafetensorsFile(path()).read<double>("x").to_vector(), (std::vector<double>{1, 2}));
  EXPECT_EQ(SafetensorsFile(path()).read<double>("y").item(), double{0.1f});
}

TEST_F(SafetensorsFiles, FloatsWidenAndNarrow) {
  const auto doubles = one_tensor("F64", "[4]", raw<double>({0.1, 1e300, 1e-300, -0.0})).read<float>("x");
  EXPECT_EQ(doubles.to_vector(), (std::vector<float>{0.1f, INFINITY, 0.0f, -0.0f}));
  EXPECT_TRUE(std::signbit(doubles(3)));
  const auto floats = one_tensor("F32", "[3]", raw<float>({0.1f, -INFINITY, 1e-45f})).read<double>("x");
  EXPECT_EQ(floats.to_vector(), (std::vector<double>{double{0.1f}, -INFINITY, 0x1p-149}));
}

template <class Stored>
void expect_integers(const SafetensorsFile& file, const std::vector<Stored>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(file.read<Index>("x").data()[i], static_cast<Index>(values[i]));
    EXPECT_EQ(file.read<double>("x").data()[i], static_cast<double>(values[i]));
    EXPECT_EQ(file.read<float>("x").data()[i], static_cast<float>(values[i]));
  }
}

TEST_F(SafetensorsFiles, IntegersOfEveryWidthAreRead) {
  const auto check = [&]<class Stored>(const std::string& type, Stored) {
    using Limits = std::numeric_limits<Stored>;
    const std::vector<Stored> values{Limits::min(), 0, 1, 77, Limits::max()};
    expect_integers(one_tensor(type, "[5]", raw(values)), values);
  };
  check("I64", std::int64_t{});
  check("I32", std::int32_t{});
  check("I16", std::int16_t{});
  check("I8", std::int8_t{});
  check("U32", std::uint32_t{});
  check("U16", std::uint16_t{});
  check("U8", std::uint8_t{});
  const std::vector<std::uint64_t> fitting{0, 5, INT64_MAX};
  expect_integers(one_tensor("U64", "[3]", raw(fitting)), fitting);
  const auto beyond = one_tensor("U64", "[2]", raw<std::uint64_t>({0, UINT64_MAX}));
  EXPECT_TRUE(has(message_of([&] { beyond.read<Index>("x"); }),
                  path() + ": x: element (1) is not a value of type int64"));
  EXPECT_EQ(beyond.read<double>("x")(1), 0x1p64);
}

TEST_F(SafetensorsFiles, TruthValuesAreReadAndMustBe0Or1) {
  const auto file = one_tensor("BOOL", "[3]", raw<std::uint8_t>({1, 0, 1}));
  EXPECT_EQ(file.read<bool>("x").to_vector(), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(file.read<Index>("x").to_vector(), (std::vector<Index>{1, 0, 1}));
  EXPECT_EQ(file.read<float>("x").to_vector(), (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(one_tensor("U8", "[2]", raw<std::uint8_t>({0, 1})).read<bool>("x").to_vector(),
            (std::vector<bool>{false, true}));
  const auto lying = one_tensor("BOOL", "[3]", raw<std::uint8_t>({1, 0, 2}));
  EXPECT_TRUE(
      has(message_of([&] { lying.read<bool>("x"); }), ": x: element (2) is not a value of type bool"));
  EXPECT_TRUE(
      has(message_of([&] { lying.read<double>("x"); }), ": x: element (2) is not a value of type double"));
  const auto bytes = one_tensor("U8", "[1]", raw<std::uint8_t>({255}));
  EXPECT_TRUE(has(message_of([&] { bytes.read<bool>("x"); }), ": x: element (0) is not"));
}

TEST_F(SafetensorsFiles, ReadingAsAnUnfitTypeOrAnUnknownNameIsAnError) {
  const auto floats = one_tensor("F32", "[1]", raw<float>({1}));
  EXPECT_EQ(message_of([&] { floats.read<Index>("x"); }), path() + ": x: is F32, which is not read as int64");
  EXPECT_TRUE(has(message_of([&] { floats.read<bool>("x"); }), ": x: is F32, which is not read as bool"));
  for (const auto& ask :
       {+[](const SafetensorsFile& f) { f.read<float>("y"); },
        +[](const SafetensorsFile& f) { f.shape("y"); }, +[](const SafetensorsFile& f) { f.type("y"); }}) {
    EXPECT_EQ(message_of([&] { ask(floats); }), path() + ": y: no such tensor among the 1 of this file");
  }
  EXPECT_TRUE(has(message_of([&] { one_tensor("I16", "[1]", "ab").read<bool>("x"); }), "is I16"));
  const auto eight_bits = one_tensor("F8_E4M3", "[2]", "ab");  // may be there, but is not read
  EXPECT_EQ(eight_bits.shape("x"), Shape{2});
  EXPECT_TRUE(has(message_of([&] { eight_bits.read<float>("x"); }), ": x: is F8_E4M3"));
  EXPECT_EQ(one_tensor("F4", "[4]", "ab").shape("x"), Shape{4});
  EXPECT_EQ(one_tensor("F6_E3M2", "[4]", "abc").type("x"), "F6_E3M2");
}

// ---- Files of other programs

TEST(SafetensorsData, EveryGoldenCaseIsRead) {
  int files = 0, tensors = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(TAPEHEAD_TEST_DATA) / "golden")) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    ++files;
    EXPECT_FALSE(file.metadata().at("kind").empty()) << file.path();
    for (const std::string& name : file.names()) {
      ++tensors;
      const std::string& type = file.type(name);
      if (type == "F64") {
        const auto array = file.read<double>(name);
        EXPECT_EQ(array.shape(), file.shape(name));
        for (const double x : array.values()) ASSERT_FALSE(std::isnan(x)) << file.path() << " " << name;
      } else if (type == "I64") {
        EXPECT_EQ(file.read<Index>(name).shape(), file.shape(name));
      } else {
        ASSERT_EQ(type, "BOOL");
        EXPECT_EQ(file.read<bool>(name).shape(), file.shape(name));
      }
    }
  }
  EXPECT_EQ(files, 130);
  EXPECT_GT(tensors, 700);
}

TEST(SafetensorsData, TheGoldenPathsAddUpToTheGradient) {
  const SafetensorsFile file(fs::path(TAPEHEAD_TEST_DATA) / "golden" / "paths_self_causal.safetensors");
  const auto whole = file.read<double>("grad_x");
  for (Index i = 0; i < whole.size(); ++i) {
    double sum = 0;
    for (const char* path : {"query", "key", "value"}) {
      sum += file.read<double>(std::string("grad_x_via_") + path).data()[i];
    }
    EXPECT_NEAR(sum, whole.data()[i], 1e-12);
  }
}

// ---- Files that lie

struct Lie {
  const char* name;
  std::string header;
  std::size_t buffer_bytes;
  const char* said;  // part of the message, which begins with the file
};

std::string tensor(std::string_view type, std::string_view shape, std::string_view offsets) {
  return std::string(R"({"dtype":)").append(type) + ",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}";
}

std::vector<Lie> lies() {
  const std::string good = tensor(R"("F32")", "[2]", "[0,8]");
  const std::string deep(100000, '[');
  std::string deep_objects;
  for (int i = 0; i < 100000; ++i) deep_objects += "{\"a\":";
  const std::string twice = R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto x = [](const std::string& entry) { return "{\"x\":" + entry + "}"; };
  const auto f32 = [&](std::string_view shape, std::string_view offsets) {
    return x(tensor(R"("F32")", shape, offsets));
  };
  return {
      {"overlap",
       R"({"a":)" + tensor(R"("U8")", "[6]", "[0,6]") + R"(,"b":)" + tensor(R"("U8")", "[4]", "[4,8]") + "}",
       8, ": b: overlaps a"},
      {"the same place", R"({"a":)" + good + R"(,"b":)" + good + "}", 8, ": b: overlaps a"},
      {"empty one inside", R"({"a":)" + good + R"(,"b":)" + tensor(R"("U8")", "[0]", "[4,4]") + "}", 8,
       ": b: overlaps a"},
      {"hole at the start", f32("[1]", "[4,8]"), 8, ": x: the 4 bytes before it belong to no tensor"},
      {"hole between",
       R"({"a":)" + tensor(R"("U8")", "[1]", "[0,1]") + R"(,"b":)" + tensor(R"("U8")", "[1]", "[3,4]") + "}",
       4, ": b: the 2 bytes before it"},
      {"bytes left over", f32("[2]", "[0,8]"), 9, ": the last 1 bytes belong to no tensor"},
      {"only bytes", "{}", 3, ": the last 3 bytes belong to no tensor"},
      {"beyond the end", f32("[2]", "[0,8]"), 7, ": x: ends at byte 8 of a buffer of 7"},
      {"far beyond the end", f32("[2]", "[18446744073709551607,18446744073709551615]"), 8,
       ": x: ends at byte 184"},
      {"backwards", f32("[2]", "[8,0]"), 8, ": x: data_offsets begin at 8 and end at 0"},
      {"too short", f32("[3]", "[0,8]"), 8, ": x: data_offsets leave 8 bytes for shape (3) of F32"},
      {"too long", f32("[1]", "[0,8]"), 8, ": x: data_offsets leave 8 bytes for shape (1) of F32"},
      {"half an element", f32("[1]", "[0,7]"), 7, ": x: data_offsets leave 7 bytes"},
      {"scalar of two", f32("[]", "[0,8]"), 8, ": x: data_offsets leave 8 bytes for shape () of F32"},
      {"huge extent", f32("[4611686018427387904]", "[0,8]"), 8, ": x: data_offsets leave 8 bytes"},
      {"huge extent of nothing", f32("[1099511627776]", "[0,0]"), 0, ": x: data_offsets leave 0 bytes"},
      {"product of 2^64", f32("[4294967296,4294967296]", "[0,0]"), 0, ": x: shape has more than 2^62"},
      {"product of 2^64 behind a 0", f32("[0,4294967296,4294967296]", "[0,0]"), 0,
       ": x: shape has more than"},
      {"bytes that wrap to 8", f32("[4611686018427387906]", "[0,8]"), 8, ": x: shape has more than 2^62"},
      {"extent of 2^63", f32("[9223372036854775808]", "[0,8]"), 8, ": x: shape has more than 2^62"},
      {"extent of 2^64", f32("[18446744073709551616]", "[0,8]"), 8,
       ": x: shape is not a list of whole numbers"},
      {"extent of 10^999", f32("[1e999]", "[0,8]"), 8, ": x: shape is not a list of whole numbers"},
      {"extent of a thousand digits", f32("[" + std::string(1000, '9') + "]", "[0,8]"), 8,
       ": x: shape is not a list of whole numbers"},
      {"leading zero", f32("[02]", "[0,8]"), 8, ": x: the header is not JSON at its byte 29"},
      {"no comma", f32("[2 2]", "[0,8]"), 8, ": x: the header is not JSON at its byte 31"},
      {"comma too many", f32("[2,]", "[0,8]"), 8, ": x: the header is not JSON at its byte 31"},
      {"cut list", R"({"x":{"shape":[2)", 0, ": x: the header is not JSON at its byte 16"},
      {"cut escape", R"({"x\)", 0, ": the header is not JSON at its byte 4"},
      {"escape cut by the end", R"({"x\")", 0, ": the header is not JSON at its byte 5"},
      {"unknown escape", R"({"\x":3})", 0, ": the header is not JSON at its byte 2"},
      {"three digits", R"({"\u00e":3})", 0, ": the header is not JSON at its byte 2"},
      {"first surrogate and no second", R"({"\ud83dx":3})", 0, ": the header is not JSON at its byte 2"},
      {"first surrogate twice", R"({"\ud83d\ud83d":3})", 0, ": the header is not JSON at its byte 2"},
      {"second surrogate first", R"({"\ude00":3})", 0, ": the header is not JSON at its byte 2"},
      {"line break in a name", "{\"x\n\":" + good + "}", 8, ": the header is not JSON at its byte 3"},
      {"beyond Unicode", "{\"x\xF4\x90\x80\x80\":" + good + "}", 8,
       ": the header is not UTF-8 at its byte 3"},
      {"surrogate as UTF-8", "{\"x\xED\xA0\x80\":" + good + "}", 8,
       ": the header is not UTF-8 at its byte 3"},
      {"cut UTF-8", "{\"x\xE2\x82\":" + good + "}", 8, ": the header is not UTF-8 at its byte 3"},
      {"not UTF-8 in metadata", "{\"__metadata__\":{\"k\":\"\xFE\"}}", 0,
       ": __metadata__: the header is not UTF-8 at its byte 22"},
      {"not UTF-8 in a dtype", "{\"x\":{\"dtype\":\"\xFE\"}}", 0,
       ": x: the header is not UTF-8 at its byte 15"},
      {"a name of 65537 bytes", "{\"" + std::string(65537, 'n') + "\":3}", 0,
       ": a name of 65537 bytes, where 65536 are allowed: nnnn"},
      {"half a byte", x(tensor(R"("F4")", "[3]", "[0,1]")), 1,
       ": x: data_offsets leave 1 bytes for shape (3)"},
      {"bits that wrap to 8", f32("[576460752303423489]", "[0,4]"), 4, ": x: data_offsets leave 4 bytes"},
      {"negative extent", f32("[-2]", "[0,8]"), 8, ": x: shape holds a negative number"},
      {"negative offset", f32("[2]", "[-8,0]"), 8, ": x: data_offsets holds a negative number"},
      {"fraction", f32("[2.0]", "[0,8]"), 8, ": x: shape is not a list of whole numbers"},
      {"exponent", f32("[2]", "[0,8e0]"), 8, ": x: data_offsets is not a list"},
      {"rank 9", f32("[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, ": x: shape has more than 8 numbers"},
      {"three offsets", f32("[2]", "[0,8,8]"), 8, ": x: data_offsets has more than 2 numbers"},
      {"one offset", f32("[2]", "[8]"), 8, ": x: data_offsets has fewer than 2"},
      {"no offsets", f32("[2]", "[]"), 8, ": x: data_offsets has fewer than 2"},
      {"shape of text", f32("[\"2\"]", "[0,8]"), 8, ": x: shape is not a list"},
      {"shape a number", f32("2", "[0,8]"), 8, ": x: shape is not a list"},
      {"shape an object", f32("{}", "[0,8]"), 8, ": x: shape is not a list"},
      {"shape null", f32("null", "[0,8]"), 8, ": x: shape is not a list"},
      {"nested shape", f32("[[2]]", "[0,8]"), 8, ": x: shape is not a list"},
      {"offsets true", f32("[2]", "true"), 8, ": x: data_offsets is not a list"},
      {"dtype a number", x(tensor("4", "[2]", "[0,8]")), 8, ": x: dtype is not a string"},
      {"dtype a list", x(tensor("[]", "[2]", "[0,8]")), 8, ": x: dtype is not a string"},
      {"dtype negative", x(tensor("-4", "[2]", "[0,8]")), 8, ": x: dtype is not a string"},
      {"unknown dtype", x(tensor(R"("F31")", "[2]", "[0,8]")), 8, ": x: unknown dtype F31"},
      {"dtype in small letters", x(tensor(R"("f32")", "[2]", "[0,8]")), 8, ": x: unknown dtype f32"},
      {"no dtype", R"({"x":{"shape":[2],"data_offsets":[0,8]}})", 8, ": x: has no dtype"},
      {"no shape", R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", 8, ": x: has no shape"},
      {"no place", R"({"x":{"dtype":"F32","shape":[2]}})", 8, ": x: has no data_offsets"},
      {"no fields", R"({"x":{}})", 0, ": x: has no dtype"},
      {"second without fields", R"({"a":)" + good + R"(,"x":{}})", 8, ": x: has no dtype"},
      {"unknown field", R"({"x":{"dtype":"F32","stride":[2]}})", 8, ": x: unknown field stride"},
      {"field twice", x(twice), 8, ": x: dtype appears twice"},
      {"list twice", R"({"x":{"shape":[2],"shape":[2]}})", 8, ": x: shape appears twice"},
      {"name twice", R"({"x":)" + good + R"(,"x":)" + good + "}", 8, ": x: appears twice in the header"},
      {"name twice by an escape", R"({"x":)" + good + R"(,"\u0078":)" + good + "}", 8, ": x: appears twice"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, ": __metadata__: appears twice"},
      {"metadata key twice", R"({"__metadata__":{"k":"1","k":"2"}})", 0,
       ": __metadata__: the key k appears twice"},
      {"metadata a number", R"({"__metadata__":{"k":1}})", 0,
       ": __metadata__: the value of k is not a string"},
      {"metadata nested", R"({"__metadata__":{"k":{}}})", 0,
       ": __metadata__: the value of k is not a string"},
      {"metadata a list", R"({"__metadata__":[]})", 0, ": __metadata__: its entry is not an object"},
      {"entry a number", R"({"x":3})", 0, ": x: its entry is not an object"},
      {"entry negative", R"({"x":-3})", 0, ": x: its entry is not an object"},
      {"entry a list", R"({"x":[]})", 0, ": x: its entry is not an object"},
      {"entry a string", R"({"x":"F32"})", 0, ": x: its entry is not an object"},
      {"a list", "[]", 0, ": the header does not begin with '{'"},
      {"space first", " {}", 0, ": the header does not begin with '{'"},
      {"byte order mark", "\xEF\xBB\xBF{}", 0, ": the header does not begin with '{'"},
      {"no header", "", 0, ": the header does not begin with '{'"},
      {"cut JSON", R"({"x":{"dtype":"F32")", 0, ": x: the header is not JSON at its byte"},
      {"cut name", R"({"xyz)", 0, ": the header is not JSON at its byte"},
      {"two objects", "{}{}", 0, ": the header is not JSON at its byte"},
      {"trailing comma", "{\"x\":" + good + ",}", 8, ": the header is not JSON at its byte"},
      {"comment", "{/**/}", 0, ": the header is not JSON at its byte"},
      {"zero byte and more", std::string("{}\0{", 4), 0, ": the header is not JSON at its byte 2"},
      {"zero padding", std::string("{}\0\0", 4), 0, ": the header is not JSON at its byte 2"},
      {"not UTF-8", "{\"x\xFF\":" + good + "}", 8, ": the header is not UTF-8 at its byte"},
      {"overlong UTF-8", "{\"x\xC0\x80\":" + good + "}", 8, ": the header is not UTF-8 at its byte"},
      {"lone surrogate", R"({"\ud800":)" + good + "}", 8, ": the header is not JSON at its byte"},
      {"deep lists", "{\"x\":" + deep, 0, ": x: its entry is not an object"},
      {"deep lists in a shape", "{\"x\":{\"shape\":" + deep, 0, ": x: shape is not a list"},
      {"deep objects", deep_objects, 0, ": a: unknown field a"},
      {"deep metadata", "{\"__metadata__\":" + deep_objects, 0,
       ": __metadata__: the value of a is not a string"},
      {"control characters", "{\"\\u001b[31m\\n\":3}", 0, ": \\x1b[31m\\x0a: its entry is not an object"},
  };
}

TEST_F(SafetensorsFiles, EveryLieIsAnErrorThatNamesFileAndTensor) {
  for (const Lie& lie : lies()) {
    SCOPED_TRACE(lie.name);
    put(path(), bytes_of(lie.header, std::string(lie.buffer_bytes, '\1')));
    reset_memory_peak();
    const std::ptrdiff_t live = memory_statistics().live;
    const std::string message = message_of([&] { SafetensorsFile file(path()); });
    EXPECT_EQ(memory_statistics().peak, live);
    EXPECT_EQ(message.rfind(path() + lie.said, 0), 0u) << message;
    EXPECT_LT(message.size(), path().size() + 300);
  }
}

TEST_F(SafetensorsFiles, LongNamesAreShortenedInMessages) {
  std::string name;
  for (int i = 0; i < 5000; ++i) name += "\u00e9";
  put(path(), bytes_of("{\"" + name + "\":3}"));
  const std::string message = message_of([&] { SafetensorsFile file(path()); });
  EXPECT_EQ(message, path() + ": " + name.substr(0, 80) + "...: its entry is not an object");
}

TEST_F(SafetensorsFiles, HeaderLengthsThatLieAreErrors) {
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{100'000'001}, std::uint64_t{1} << 32,
                                     std::uint64_t{1} << 63, UINT64_MAX - 7, UINT64_MAX}) {
    std::string bytes = bytes_of("{}");
    std::memcpy(bytes.data(), &length, sizeof length);
    put(path(), bytes);
    EXPECT_TRUE(has(message_of([&] { SafetensorsFile file(path()); }),
                    path() + ": claims a header of " + std::to_string(length) + " bytes, and 2 follow"));
  }
}

// A file of this header, and of this many bytes in all: what is beyond the header is a hole on the disk.
void put_with_hole(const std::string& path, std::uint64_t length, std::string_view header,
                   std::size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.close();
  fs::resize_file(path, bytes);
}

TEST_F(SafetensorsFiles, AHeaderMayHave100MegabytesAndFrom10OnNoMoreThanTheData) {
  const auto message = [&](std::uint64_t length, std::size_t data_bytes) {
    put_with_hole(path(), length, "{", 8 + length + data_bytes);
    return message_of([&] { SafetensorsFile file(path()); });
  };
  const std::string not_json = path() + ": the header is not JSON at its byte 1";
  EXPECT_EQ(message(10'000'000, 0), not_json);
  EXPECT_TRUE(has(message(10'000'001, 10'000'000),
                  path() + ": a header of 10000001 bytes for 10000000 bytes of data; 10000000 are allowed, "
                           "or as many as the data up to 100000000"));
  EXPECT_EQ(message(10'000'001, 10'000'001), not_json);
  EXPECT_EQ(message(100'000'000, 100'000'000), not_json);
  EXPECT_TRUE(has(message(100'000'001, 200'000'000), ": a header of 100000001 bytes for 200000000 bytes"));
}

std::string repeated(std::size_t bytes, const std::function<std::string(std::size_t)>& part) {
  std::string text;
  for (std::size_t i = 0; text.size() < bytes; ++i) text += part(i);
  return text;
}

std::string hex(std::size_t i) {
  char text[20];
  return {text, static_cast<std::size_t>(std::snprintf(text, sizeof text, "%zx", i))};
}

// Twenty megabytes of JSON, of the kinds that a parser may keep, and how much memory each may take.
TEST_F(SafetensorsFiles, MegabytesOfJsonTakeNoMoreThanTheTableThatTheyDescribe) {
  constexpr std::size_t size = 20'000'000, data_bytes = 21'000'000, little = 4'000'000;
  struct Hostile {
    const char* name;
    std::string header;
    std::size_t bytes;
    const char* said;  // nothing when the file can be opened
  };
  const auto key = [](std::size_t i) { return "\"" + hex(i) + "\":\"\","; };
  const auto empty_tensor = [](std::size_t i) {
    return "\"" + hex(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
  };
  const auto always = [](std::string part) { return [part](std::size_t) { return part; }; };
  const std::string all = "\"all\":" + tensor("\"U8\"", "[21000000]", "[0,21000000]") + "}";
  const std::vector<Hostile> kinds{
      {"a name", "{\"" + std::string(size, 'n') + "\":3}", little, "a name of 20000000 bytes"},
      {"a cut name", "{\"" + std::string(size, 'n'), little, "not JSON at its byte 20000002"},
      {"a field", "{\"x\":{\"" + std::string(size, 'n') + "\":3}}", little, "a name of 20000000 bytes"},
      {"a dtype", "{\"x\":{\"dtype\":\"" + std::string(size, 'n') + "\"}}", little, "a name of 20000000"},
      {"a number", "{\"x\":{\"shape\":[" + std::string(size, '1') + "]}}", little, "shape is not a list"},
      {"a list", "{\"x\":{\"shape\":[" + repeated(size, always("1,")), little, "more than 8 numbers"},
      {"depth", repeated(size, always("{\"a\":")), little, "unknown field a"},
      {"spaces", "{" + std::string(size, ' ') + "3", little, "not JSON at its byte 20000001"},
      {"keys", "{\"__metadata__\":{" + repeated(size, key), 12'000'000, "more than 65536 keys"},
      {"a value", "{\"__metadata__\":{\"k\":\"" + std::string(size, 'v') + "\"}," + all, size + little, ""},
      {"tensors", "{" + repeated(size, empty_tensor) + all, 3 * size, ""},
  };
  for (const Hostile& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const std::size_t bytes = 8 + kind.header.size() + data_bytes;
    put_with_hole(path(), kind.header.size(), kind.header, bytes);
    const auto open = [&] { SafetensorsFile file(path()); };
    const Outcome outcome = std::string_view(kind.said).empty() ? done : file_error;
    EXPECT_EXIT(exit_of(bytes + kind.bytes, open), testing::ExitedWithCode(outcome), kind.said);
  }
  // The witness: to copy the header once is more than nearly all of them may take.
  const auto copy = [] { EXPECT_NE(std::vector<char>(size, '1').data(), nullptr); };
  EXPECT_EXIT(
      exit_of(little, copy), [](int status) { return status != 0; }, "");
}

TEST_F(SafetensorsFiles, AFileCutAtAnyLengthIsAnError) {
  SafetensorsWriter()
      .add("weight", Array<double>::of({1, 2}))
      .add("mask", Array<bool>::of({true}))
      .metadata("k", "v")
      .write(path());
  const std::string whole = get(path());
  SafetensorsFile file(path());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(path("cut"), whole.substr(0, length));
    const std::string message = message_of([&] { SafetensorsFile cut(path("cut")); });
    EXPECT_EQ(message.rfind(path("cut") + ": ", 0), 0u) << length;
  }
  put(path("cut"), whole.substr(0, whole.size() - 1));
  EXPECT_TRUE(has(message_of([&] { SafetensorsFile cut(path("cut")); }), ": mask: ends at byte 17"));
  put(path("cut"), whole + "x");
  EXPECT_TRUE(has(message_of([&] { SafetensorsFile cut(path("cut")); }), ": the last 1 bytes"));
}

TEST_F(SafetensorsFiles, WhatIsNoFileIsAnError) {
  EXPECT_TRUE(has(message_of([&] { SafetensorsFile file(path("missing")); }),
                  path("missing") + ": cannot be opened: "));
  EXPECT_EQ(message_of([&] { SafetensorsFile file(folder_); }), folder_.string() + ": is not a regular file");
  EXPECT_EQ(message_of([&] { SafetensorsFile file("/dev/null"); }), "/dev/null: is not a regular file");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { SafetensorsFile file(path("pipe")); }),
            path("pipe") + ": is not a regular file");
}

// Opens the file and reads every tensor as every type; true when all of it was possible or a FileError.
bool survives(const std::string& path, int& opened) {
  try {
    const SafetensorsFile file(path);
    ++opened;
    for (const std::string& name : file.names()) {
      const auto attempt = [&]<class T>(T) {
        try {
          const auto array = file.read<T>(name);
          EXPECT_EQ(array.to_vector().size(), static_cast<std::size_t>(file.shape(name).size()));
        } catch (const FileError&) {
        }
      };
      attempt(double{});
      attempt(float{});
      attempt(Index{});
      attempt(bool{});
    }
    return true;
  } catch (const FileError& error) {
    return std::string_view(error.what()).starts_with(path + ": ");
  } catch (...) {
    return false;
  }
}

TEST_F(SafetensorsFiles, MutatedFilesOnlyEverThrowFileError) {
  SafetensorsWriter()
      .add("w", Array<double>::of({{1, 2}, {3, 4}}))
      .add("n", Array<Index>::of({5, 6}))
      .add("f", Array<float>::of({7}))
      .add("b", Array<bool>::of({true, false}))
      .metadata("key", "value")
      .write(path());
  const std::string whole = get(path());
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), sizeof header_bytes);
  const std::string header = whole.substr(8, header_bytes), buffer = whole.substr(8 + header_bytes);
  Damage damage(1, {"{", "}", "[", "]", ",", ":", "\"", "0", "-1", "1e9", "4294967296", "\\u0000", "\xFF",
                    "null", "\"U8\"", "\"F16\"", " "});
  int opened = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bytes = bytes_of(damage(header), buffer);
    if (damage.one_in(10)) bytes[damage.below(8)] = static_cast<char>(damage.below(256));  // of the length
    if (damage.one_in(10)) bytes.resize(damage.below(bytes.size()));
    put(path(), bytes);
    ASSERT_TRUE(survives(path(), opened)) << "round " << round << ": " << bytes;
  }
  EXPECT_GT(opened, 20);  // some damage is harmless, so the reading of tensors is met as well
  EXPECT_LT(opened, 3000);
}

// ---- Writing that fails

TEST_F(SafetensorsFiles, NamesThatCannotBeWrittenAreErrors) {
  SafetensorsWriter writer;
  const auto one = Array<double>::of({1});
  writer.add("x", one).metadata("k", "v");
  EXPECT_THROW(writer.add("x", Array<float>::of({2})), LogicError);
  EXPECT_THROW(writer.add("__metadata__", one), LogicError);
  EXPECT_THROW(writer.add("\xFF", one), LogicError);
  EXPECT_THROW(writer.metadata("k", "w"), LogicError);
  EXPECT_THROW(writer.metadata("\xC0\x80", "w"), LogicError);
  EXPECT_THROW(writer.metadata("l", "\xED\xA0\x80"), LogicError);
  EXPECT_TRUE(
      raises<LogicError>([&] { writer.add(std::string(65537, 'n'), one); }, {"65537", "65536", "nnn..."}));
  EXPECT_THROW(writer.metadata(std::string(65537, 'n'), "w"), LogicError);
  writer.add("line\n\"quote\" \u00e9 \\", one);
  writer.write(path());
  EXPECT_EQ(SafetensorsFile(path()).names(), (std::vector<std::string>{"x", "line\n\"quote\" \u00e9 \\"}));
  EXPECT_EQ(SafetensorsFile(path()).metadata().at("k"), "v");
}

TEST_F(SafetensorsFiles, AHeaderThatCouldNotBeReadIsNotWritten) {
  const std::string text(10'000'000, 'v');
  auto writer = SafetensorsWriter().metadata("k", text);
  EXPECT_TRUE(has(message_of([&] { writer.write(path()); }), path() + ": a header of 100000"));
  EXPECT_TRUE(files_in_folder().empty());
  writer.add("x", Array<bool>::zeros({10'000'400})).write(path());
  EXPECT_EQ(SafetensorsFile(path()).metadata().at("k"), text);
}

TEST_F(SafetensorsFiles, MetadataHas65536KeysAtMost) {
  SafetensorsWriter writer;
  for (std::size_t i = 0; i < 65536; ++i) writer.metadata(hex(i), "");
  EXPECT_TRUE(raises<LogicError>([&] { writer.metadata("one more", ""); }, {"65536"}));
  writer.write(path());
  EXPECT_EQ(SafetensorsFile(path()).metadata().size(), 65536u);
}

TEST_F(SafetensorsFiles, AFolderThatCannotBeWrittenIsAnErrorNamingTheFile) {
  const auto writer = SafetensorsWriter().add("x", Array<double>::of({1}));
  const std::string missing = path("no/such/folder.safetensors");
  EXPECT_TRUE(has(message_of([&] { writer.write(missing); }), missing + ": cannot be created: "));
  EXPECT_TRUE(has(message_of([&] { writer.write(""); }), ": cannot be "));
  if (::geteuid() != 0) {
    fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_TRUE(has(message_of([&] { writer.write(path()); }), path() + ": cannot be created: "));
    fs::permissions(folder_, fs::perms::owner_all);
  }
  EXPECT_TRUE(files_in_folder().empty());
}

TEST_F(SafetensorsFiles, DevicesFoldersAndPipesAreNeverReplaced) {
  const auto writer = SafetensorsWriter().add("x", Array<double>::of({1}));
  EXPECT_EQ(message_of([&] { writer.write("/dev/full"); }), "/dev/full: is not a regular file");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_EQ(message_of([&] { writer.write(folder_); }), folder_.string() + ": is not a regular file");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { writer.write(path("pipe")); }), path("pipe") + ": is not a regular file");
}

TEST_F(SafetensorsFiles, AFullDiskLeavesTheOldFileAndNothingElse) {
  SafetensorsWriter().add("x", Array<double>::of({1})).write(path());
  const std::string old = get(path());
  const auto writer = SafetensorsWriter().add("x", Array<double>::ones({100, 100}));
  for (const rlim_t room : {rlim_t{0}, rlim_t{4}, rlim_t{60}, rlim_t{80000}}) {
    const std::string message = message_of([&] {
      const FullDisk full(room);
      writer.write(path());
    });
    EXPECT_TRUE(has(message, path() + ": cannot be written: ")) << message;
    EXPECT_EQ(get(path()), old);
    EXPECT_EQ(files_in_folder(), std::vector<std::string>{"file"});
  }
  writer.write(path());
  EXPECT_EQ(SafetensorsFile(path()).shape("x"), (Shape{100, 100}));
  EXPECT_EQ(files_in_folder().size(), 1u);
}

TEST_F(SafetensorsFiles, ALeftoverOfAKilledProcessIsNoObstacle) {
  for (int count = 0; count < 200; ++count) {
    put(path() + "." + std::to_string(::getpid()) + "-" + std::to_string(count) + ".tmp", "left over");
  }
  SafetensorsWriter().add("x", Array<double>::of({1})).write(path());
  EXPECT_EQ(SafetensorsFile(path()).read<double>("x").item(), 1.0);
  EXPECT_EQ(files_in_folder().size(), 201u);
}

}  // namespace
}  // namespace tapehead
