#include <tapehead/nn/npy.h>

#include <gtest/gtest.h>

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

class NpyFiles : public FilesTest {
 protected:
  // The bytes of a file of this version with this header and data.
  static std::string bytes_of(std::string_view header, std::string_view data, int version = 1) {
    std::string bytes("\x93NUMPY");
    bytes += static_cast<char>(version);
    bytes += '\0';
    for (std::size_t i = 0, length = header.size(); i < (version == 1 ? 2u : 4u); ++i, length >>= 8) {
      bytes += static_cast<char>(length & 255);
    }
    return bytes.append(header).append(data);
  }

  static std::string header_of(std::string_view type, std::string_view shape,
                               std::string_view order = "False") {
    return std::string("{'descr': '").append(type).append("', 'fortran_order': ").append(order) +
           ", 'shape': " + std::string(shape) + ", }\n";
  }

  NpyFile file_of(std::string_view type, std::string_view shape, std::string_view data,
                  std::string_view order = "False") const {
    put(path(), bytes_of(header_of(type, shape, order), data));
    return NpyFile(path());
  }
};

// Each element's bytes in the other order.
template <class T>
std::string raw_swapped(const std::vector<T>& values) {
  std::string bytes = raw(values);
  for (auto at = bytes.begin(); at != bytes.end(); at += sizeof(T)) std::reverse(at, at + sizeof(T));
  return bytes;
}

// ---- Round trips

template <class T>
class NpyFilesOf : public NpyFiles {};
using AllElements = testing::Types<float, double, Index, bool>;
TYPED_TEST_SUITE(NpyFilesOf, AllElements);

template <class T>
Array<T> numbered(const Shape& shape) {
  auto array = Array<T>::uninitialized(shape);
  Index i = 0;
  for (T& x : array.mutable_values()) {
    const Index value = i * 37 % 101 - 50;
    x = std::same_as<T, bool> ? static_cast<T>(i % 3 == 0) : static_cast<T>(value);
    ++i;
  }
  return array;
}

const Shape shapes[] = {
    {},           {1}, {7},       {2, 3},   {1, 5},    {5, 1},    {4, 3, 2},
    {2, 1, 3, 2}, {0}, {3, 0, 2}, {70, 90}, {2, 9000}, {9000, 2}, {2, 3, 1, 2, 1, 2, 2, 3}};

TYPED_TEST(NpyFilesOf, EveryFormComesBackBitForBit) {
  using T = TypeParam;
  for (const Shape& shape : shapes) {
    for (const bool fortran_order : {false, true}) {
      for (const std::endian byte_order : {std::endian::little, std::endian::big}) {
        SCOPED_TRACE(to_string(shape) + (fortran_order ? " Fortran" : " C") +
                     (byte_order == std::endian::big ? " big" : " little"));
        const Array<T> array = numbered<T>(shape);
        write_npy(this->path(), array, {.fortran_order = fortran_order, .byte_order = byte_order});
        const NpyFile file(this->path());
        EXPECT_EQ(file.shape(), shape);
        EXPECT_EQ(file.fortran_order(), fortran_order);
        EXPECT_TRUE(same_bits(file.read<T>(), array));
        EXPECT_TRUE(same_bits(read_npy<T>(this->path()), array));
      }
    }
  }
}

TEST_F(NpyFiles, WhatIsWrittenIsWhatTheFormatSays) {
  const auto array = Array<Index>::of({{1, 2, 3}, {4, 5, 6}});
  const auto written = [&](std::string_view type, std::string_view order) {
    std::string text = "{'descr': '" + std::string(type) + "', 'fortran_order': " + std::string(order) +
                       ", 'shape': (2, 3), }";
    text.resize(117, ' ');
    return bytes_of(text + "\n", {});
  };
  write_npy(path(), array);
  EXPECT_EQ(get(path()), written("<i8", "False") + raw<Index>({1, 2, 3, 4, 5, 6}));
  write_npy(path(), array, {.fortran_order = true});
  EXPECT_EQ(get(path()), written("<i8", "True") + raw<Index>({1, 4, 2, 5, 3, 6}));
  write_npy(path(), array, {.byte_order = std::endian::big});
  EXPECT_EQ(get(path()), written(">i8", "False") + raw_swapped<Index>({1, 2, 3, 4, 5, 6}));
  write_npy(path(), array, {.fortran_order = true, .byte_order = std::endian::big});
  EXPECT_EQ(get(path()), written(">i8", "True") + raw_swapped<Index>({1, 4, 2, 5, 3, 6}));
}

TEST_F(NpyFiles, TypesAndShapesAreWrittenAsNumPySpellsThem) {
  const auto header = [&](const auto& array) {
    write_npy(path(), array);
    const std::string bytes = get(path());
    EXPECT_EQ((bytes.size() - array.bytes()) % 64, 0u);
    return bytes.substr(10, bytes.find('}') - 9);
  };
  EXPECT_EQ(header(Array<float>::scalar(1)), "{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
  EXPECT_EQ(header(Array<double>::ones({3})), "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }");
  EXPECT_EQ(header(Array<bool>::ones({3, 1})), "{'descr': '|b1', 'fortran_order': False, 'shape': (3, 1), }");
  EXPECT_EQ(header(Array<bool>()), "{'descr': '|b1', 'fortran_order': False, 'shape': (0,), }");
}

TEST_F(NpyFiles, ValuesThatAreNotFiniteAndSignsOfZeroComeBack) {
  const double huge = std::numeric_limits<double>::max(), tiny = std::numeric_limits<double>::denorm_min();
  const auto array = Array<double>::of({{1.5, -0.0, INFINITY}, {std::nan("7"), huge, tiny}});
  write_npy(path(), array, {.fortran_order = true, .byte_order = std::endian::big});
  EXPECT_TRUE(same_bits(read_npy<double>(path()), array));
}

TEST_F(NpyFiles, AnArrayOfTheVeryTypeIsReadWithoutACopyAndOutlivesTheFile) {
  const Index count = 1 << 16;
  write_npy(path(), Array<double>::arange(count));
  reset_memory_peak();
  Array<double> x;
  {
    const NpyFile file(path());
    x = file.read<double>();
    EXPECT_TRUE(x.shares_storage_with(file.read<double>()));
  }
  EXPECT_LT(memory_statistics().largest, 4096);
  fs::remove(path());
  EXPECT_EQ(x(count - 1), static_cast<double>(count - 1));
  EXPECT_FALSE(x.sole_owner());
}

TEST_F(NpyFiles, MisalignedDataIsCopied) {
  const std::vector<double> values{1.25, -3.5};
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    put(path(), bytes_of(header_of("<f8", "(2,)") + std::string(spaces, ' '), raw(values)));
    EXPECT_EQ(read_npy<double>(path()).to_vector(), values);
  }
}

// ---- Types

template <class Stored>
void expect_numbers(const NpyFile& file, const std::vector<Stored>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(file.read<double>().data()[i], static_cast<double>(values[i])) << file.type();
    EXPECT_EQ(file.read<float>().data()[i], static_cast<float>(values[i])) << file.type();
    if constexpr (std::integral<Stored>) {
      EXPECT_EQ(file.read<Index>().data()[i], static_cast<Index>(values[i])) << file.type();
    }
  }
}

TEST_F(NpyFiles, NumbersOfEveryTypeAndByteOrderAreRead) {
  const auto check = [&]<class Stored>(const std::string& type, const std::vector<Stored>& values) {
    const std::string shape = "(" + std::to_string(values.size()) + ",)";
    expect_numbers(file_of("<" + type, shape, raw(values)), values);
    expect_numbers(file_of("=" + type, shape, raw(values)), values);
    expect_numbers(file_of("|" + type, shape, raw(values)), values);
    expect_numbers(file_of(">" + type, shape, raw_swapped(values)), values);
  };
  const auto integers = [&]<class Stored>(const std::string& type, Stored) {
    using Limits = std::numeric_limits<Stored>;
    check(type, std::vector<Stored>{Limits::min(), 0, 1, 77, Limits::max()});
  };
  integers("i8", std::int64_t{});
  integers("i4", std::int32_t{});
  integers("i2", std::int16_t{});
  integers("i1", std::int8_t{});
  integers("u4", std::uint32_t{});
  integers("u2", std::uint16_t{});
  integers("u1", std::uint8_t{});
  check("u8", std::vector<std::uint64_t>{0, 5, INT64_MAX});
  check("f8", std::vector<double>{0.5, -INFINITY, 1e300, 5e-324});
  check("f4", std::vector<float>{0.1f, -INFINITY, 1e-45f});
}

TEST_F(NpyFiles, HalvesAreWidened) {
  // Bits and values of IEEE 754-2019, binary16: 1, -2, largest, smallest normal and subnormal, infinity, -0.
  const std::vector<std::uint16_t> bits{0x3C00, 0xC000, 0x7BFF, 0x0400, 0x0001, 0x7C00, 0x8000};
  const std::vector<double> values{1, -2, 65504, 0x1p-14, 0x1p-24, INFINITY, -0.0};
  EXPECT_EQ(file_of("<f2", "(7,)", raw(bits)).read<double>().to_vector(), values);
  EXPECT_EQ(file_of(">f2", "(7,)", raw_swapped(bits)).read<double>().to_vector(), values);
  EXPECT_TRUE(std::signbit(file_of("<f2", "(7,)", raw(bits)).read<float>()(6)));
}

TEST_F(NpyFiles, AFortranArrayIsReadRowMajor) {
  const auto f = file_of(">i2", "(2, 3)", raw_swapped<std::int16_t>({1, 4, 2, 5, 3, 6}), "True");
  EXPECT_TRUE(f.fortran_order());
  EXPECT_EQ(f.read<Index>().to_vector(), (std::vector<Index>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(f.shape(), (Shape{2, 3}));
  const auto c = file_of(">i2", "(2, 3)", raw_swapped<std::int16_t>({1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(c.read<Index>().to_vector(), (std::vector<Index>{1, 4, 2, 5, 3, 6}));
}

TEST_F(NpyFiles, ElementsThatDoNotFitAreErrorsThatSayWhere) {
  const auto big = file_of("<u8", "(2, 2)", raw<std::uint64_t>({0, 1, UINT64_MAX, 2}));
  EXPECT_EQ(message_of([&] { big.read<Index>(); }), path() + ": element (1, 0) is not a value of type int64");
  EXPECT_EQ(big.read<double>()(1, 0), 0x1p64);
  const auto fortran = file_of(">u8", "(2, 2)", raw_swapped<std::uint64_t>({0, 1, UINT64_MAX, 2}), "True");
  EXPECT_TRUE(has(message_of([&] { fortran.read<Index>(); }), ": element (0, 1) is not"));
  const auto truths = file_of("|b1", "(3,)", raw<std::uint8_t>({1, 0, 2}));
  EXPECT_EQ(message_of([&] { truths.read<bool>(); }), path() + ": element (2) is not a value of type bool");
  EXPECT_TRUE(has(message_of([&] { truths.read<float>(); }), ": element (2) is not a value of type float"));
  EXPECT_EQ(file_of("|u1", "(2,)", raw<std::uint8_t>({1, 0})).read<bool>().to_vector(),
            (std::vector<bool>{true, false}));
  std::vector<std::uint8_t> many(10000, 1);
  many[9876] = 7;
  const auto late = file_of("|b1", "(100, 100)", raw(many));  // beyond the first block
  EXPECT_TRUE(has(message_of([&] { late.read<bool>(); }), ": element (98, 76) is not"));
}

TEST_F(NpyFiles, ReadingAsAnUnfitTypeIsAnError) {
  const auto floats = file_of("<f4", "(1,)", raw<float>({1}));
  EXPECT_EQ(message_of([&] { floats.read<Index>(); }),
            path() + ": is of type <f4, which is not read as int64");
  EXPECT_TRUE(has(message_of([&] { floats.read<bool>(); }), "<f4, which is not read as bool"));
  const auto integers = file_of(">i2", "(1,)", "ab");
  EXPECT_TRUE(has(message_of([&] { integers.read<bool>(); }), ">i2, which is not read as bool"));
}

// ---- Headers

TEST_F(NpyFiles, EveryVersionIsRead) {
  const std::string data = raw<float>({1, 2});
  for (const int version : {1, 2, 3}) {
    put(path(), bytes_of(header_of("<f4", "(2,)"), data, version));
    EXPECT_EQ(read_npy<float>(path()).to_vector(), (std::vector<float>{1, 2}));
  }
  put(path(), bytes_of(header_of("<f4", "(2,)") + std::string(100'000, ' ') + "\n", data, 2));
  EXPECT_EQ(read_npy<float>(path()).to_vector(), (std::vector<float>{1, 2}));
}

TEST_F(NpyFiles, EverySpellingOfTheDictionaryIsRead) {
  for (const char* header : {
           "{'descr':'<f4','fortran_order':False,'shape':(2,)}",
           "{\"shape\": (2,), \"fortran_order\": True, \"descr\": \"<f4\"}   \n",
           "  { 'shape' : ( 2 , ) ,\n\t'descr' : '<f4' , 'fortran_order' : False , }\n\n",
       }) {
    put(path(), bytes_of(header, raw<float>({1, 2})));
    EXPECT_EQ(read_npy<float>(path()).to_vector(), (std::vector<float>{1, 2})) << header;
  }
  EXPECT_EQ(file_of("<f4", "(1, 2)", raw<float>({1, 2})).shape(), (Shape{1, 2}));
  EXPECT_EQ(file_of("<f4", "(1, 2,)", raw<float>({1, 2})).shape(), (Shape{1, 2}));
  EXPECT_EQ(file_of("<f4", "()", raw<float>({1})).shape(), Shape{});
  EXPECT_EQ(file_of("<f4", "(2, 1, 1, 1, 1, 1, 1, 1)", raw<float>({1, 2})).shape().rank(), 8);
}

struct Lie {
  const char* name;
  std::string header;
  std::size_t data_bytes;
  const char* said;  // what follows the file in the message
};

std::vector<Lie> lies() {
  const auto shape = [](std::string_view text) {
    return "{'descr': '<f4', 'fortran_order': False, 'shape': " + std::string(text) + ", }\n";
  };
  const auto type = [](std::string_view text) {
    return "{'descr': " + std::string(text) + ", 'fortran_order': False, 'shape': (2,), }\n";
  };
  const auto order = [](std::string_view text) {
    return "{'descr': '<f4', 'fortran_order': " + std::string(text) + ", 'shape': (2,), }\n";
  };
  const char* syntax = ": the header is not a dictionary of literals at its byte ";
  return {
      {"too little data", shape("(2,)"), 7,
       ": holds 7 bytes of data, where shape (2) of <f4 needs 2 times 4"},
      {"too much data", shape("(2,)"), 9, ": holds 9 bytes of data, where shape (2) of <f4 needs 2 times 4"},
      {"another element", shape("(2,)"), 12, ": holds 12 bytes of data"},
      {"data for nothing", shape("(0, 5)"), 4, ": holds 4 bytes of data, where shape (0, 5)"},
      {"no data", shape("()"), 0, ": holds 0 bytes of data, where shape () of <f4 needs 1 times 4"},
      {"huge extent", shape("(4611686018427387904,)"), 8, ": holds 8 bytes of data"},
      {"bytes that wrap to 8", shape("(4611686018427387906,)"), 8, ": shape has more than 2^62 elements"},
      {"product of 2^64", shape("(4294967296, 4294967296)"), 0, ": shape has more than 2^62 elements"},
      {"overflow behind a 0", shape("(0, 4294967296, 4294967296)"), 0, ": shape has more than 2^62"},
      {"extent of 2^63", shape("(9223372036854775808,)"), 8, ": shape has more than 2^62 elements"},
      {"extent of 10^99", shape("(1" + std::string(99, '0') + ",)"), 8, ": shape has more than 2^62"},
      {"negative extent", shape("(-2,)"), 8, ": shape has a negative extent"},
      {"rank 9", shape("(1, 1, 1, 1, 1, 1, 1, 1, 2)"), 8, ": shape has more than 8 axes"},
      {"extent of 30000 digits", shape("(" + std::string(30000, '1')), 8, ": shape has more than 2^62"},
      {"a number", shape("2"), 8, ": shape is not a tuple"},
      {"a number in brackets", shape("(2)"), 8, ": shape is not a tuple"},
      {"a list", shape("[2]"), 8, ": shape is not a tuple"},
      {"nested", shape("((2,),)"), 8, syntax},
      {"a text", shape("('2',)"), 8, syntax},
      {"a fraction", shape("(2.0,)"), 8, syntax},
      {"an exponent", shape("(2e0,)"), 8, syntax},
      {"a long of Python 2", shape("(2L,)"), 8, syntax},
      {"leading zero", shape("(02,)"), 8, syntax},
      {"plus", shape("(+2,)"), 8, syntax},
      {"a sum", shape("(1+1,)"), 8, syntax},
      {"underscore", shape("(1_0,)"), 40, syntax},
      {"two commas", shape("(2,,)"), 8, syntax},
      {"comma alone", shape("(,)"), 0, syntax},
      {"no comma", shape("(2 1)"), 8, syntax},
      {"open", shape("(2,"), 8, syntax},
      {"a name", shape("(n,)"), 8, syntax},
      {"objects", type("'|O'"), 16, ": holds Python objects, which are not read"},
      {"records", type("[('x', '<f4'), ('y', '<f4')]"), 16, ": holds records, which are not read"},
      {"complex", type("'<c8'"), 16, ": is of type <c8, which is not read"},
      {"text", type("'<U3'"), 24, ": is of type <U3, which is not read"},
      {"bytes", type("'|S4'"), 8, ": is of type |S4, which is not read"},
      {"dates", type("'<M8[ns]'"), 16, ": is of type <M8[ns], which is not read"},
      {"raw bytes", type("'|V4'"), 8, ": is of type |V4, which is not read"},
      {"long double", type("'<f16'"), 32, ": is of type <f16, which is not read"},
      {"no width", type("'<f'"), 8, ": is of type <f, which is not read"},
      {"no order", type("'f4'"), 8, ": is of type f4, which is not read"},
      {"unknown order", type("'!f4'"), 8, ": is of type !f4, which is not read"},
      {"eight bits of float", type("'<f1'"), 2, ": is of type <f1, which is not read"},
      {"an empty type", type("''"), 8, ": is of type , which is not read"},
      {"control characters", type("'<\x1b[31m'"), 8, ": is of type <\\x1b[31m, which is not read"},
      {"escapes", type("'<f\\x34'"), 8, syntax},
      {"a line break", type("'<f\n4'"), 8, syntax},
      {"open text", type("'<f4"), 8, ": is of type <f4, , which is not read"},
      {"a type that is a number", type("4"), 8, syntax},
      {"a type that is None", type("None"), 8, syntax},
      {"order 0", order("0"), 8, ": fortran_order is neither True nor False"},
      {"order in small letters", order("false"), 8, ": fortran_order is neither True nor False"},
      {"order and more", order("Falsehood"), 8, syntax},
      {"order as text", order("'False'"), 8, ": fortran_order is neither"},
      {"no descr", "{'fortran_order': False, 'shape': (2,)}", 8, ": the header has no descr"},
      {"no order at all", "{'descr': '<f4', 'shape': (2,)}", 8, ": the header has no fortran_order"},
      {"no shape", "{'descr': '<f4', 'fortran_order': False}", 8, ": the header has no shape"},
      {"nothing in it", "{}", 8, ": the header has no descr"},
      {"unknown key", "{'descr': '<f4', 'order': 3}", 8, ": unknown key order in the header"},
      {"descr twice", "{'descr': '<f4', 'descr': '<f4'}", 8, ": descr appears twice in the header"},
      {"order twice", "{'fortran_order': True, 'fortran_order': True}", 8, ": fortran_order appears twice"},
      {"shape twice", "{'shape': (), 'shape': ()}", 8, ": shape appears twice"},
      {"no header", "", 0, ": the header is not a dictionary of literals at its byte 0"},
      {"only spaces", "      \n", 0, ": the header is not a dictionary of literals at its byte 7"},
      {"a list instead", "[]", 0, ": the header is not a dictionary of literals at its byte 0"},
      {"a call", "dict(descr='<f4')", 0, ": the header is not a dictionary of literals at its byte 0"},
      {"cut", "{'descr': '<f4', ", 0, ": the header is not a dictionary of literals at its byte 17"},
      {"text after it", shape("(2,)") + "x", 8, syntax},
      {"zero byte after it", shape("(2,)") + std::string(1, '\0'), 8, syntax},
      {"two dictionaries", shape("(2,)") + shape("(2,)"), 8, syntax},
      {"two commas between", "{'descr': '<f4',, }", 8, syntax},
      {"no colon", "{'descr' '<f4'}", 8, syntax},
      {"depth", "{'shape': " + std::string(60000, '('), 8, syntax},
      {"depth of dictionaries", std::string(60000, '{'), 8, syntax},
  };
}

TEST_F(NpyFiles, EveryLieIsAnErrorThatNamesTheFile) {
  for (const Lie& lie : lies()) {
    SCOPED_TRACE(lie.name);
    put(path(), bytes_of(lie.header, std::string(lie.data_bytes, '\1')));
    reset_memory_peak();
    const std::ptrdiff_t live = memory_statistics().live;
    const std::string message = message_of([&] { NpyFile file(path()); });
    EXPECT_EQ(memory_statistics().peak, live);
    EXPECT_EQ(message.rfind(path() + lie.said, 0), 0u) << message;
    EXPECT_LT(message.size(), path().size() + 300);
  }
}

TEST_F(NpyFiles, WhatIsNotNpyIsAnError) {
  const auto said_of = [&](std::string_view bytes) {
    put(path(), bytes);
    return message_of([&] { NpyFile file(path()); });
  };
  const std::string other = path() + ": does not begin as an .npy file does";
  EXPECT_EQ(said_of(""), other);
  EXPECT_EQ(said_of("\x93NUMP"), other);
  EXPECT_EQ(said_of("\x93NUMPZ\1"), other);
  EXPECT_EQ(said_of(std::string("PK\3\4 an archive of several, .npz")), other);
  std::string bytes = bytes_of(header_of("<f4", "()"), raw<float>({1}));
  for (const auto& [major, minor] :
       {std::pair(0, 0), std::pair(1, 1), std::pair(4, 0), std::pair(255, 255)}) {
    bytes[6] = static_cast<char>(major);
    bytes[7] = static_cast<char>(minor);
    EXPECT_EQ(said_of(bytes), path() + ": is of version " + std::to_string(major) + "." +
                                  std::to_string(minor) + ", which is none of 1.0, 2.0 and 3.0");
  }
  EXPECT_EQ(
      message_of([&] { NpyFile file(path("missing")); }).rfind(path("missing") + ": cannot be opened: ", 0),
      0u);
  EXPECT_EQ(message_of([&] { NpyFile file(folder_); }), folder_.string() + ": is not a regular file");
}

TEST_F(NpyFiles, HeaderLengthsThatLieAreErrors) {
  const std::string header = header_of("<f4", "()");
  for (const int version : {1, 2, 3}) {
    const auto one_too_many = static_cast<std::uint32_t>(header.size() + 5);
    for (const std::uint32_t length : {one_too_many, std::uint32_t{60000}, UINT32_MAX}) {
      if (version == 1 && length > 65535) continue;
      std::string bytes = bytes_of(header, raw<float>({1}), version);
      std::memcpy(bytes.data() + 8, &length, version == 1 ? 2 : 4);
      put(path(), bytes);
      EXPECT_EQ(message_of([&] { NpyFile file(path()); }), path() + ": claims a header of " +
                                                               std::to_string(length) + " bytes, and " +
                                                               std::to_string(header.size() + 4) + " follow");
    }
  }
}

TEST_F(NpyFiles, AFileCutAtAnyLengthIsAnError) {
  write_npy(path(), Array<double>::of({1, 2}));
  const std::string whole = get(path());
  NpyFile file(path());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(path("cut"), whole.substr(0, length));
    const std::string message = message_of([&] { NpyFile cut(path("cut")); });
    EXPECT_EQ(message.rfind(path("cut") + ": ", 0), 0u) << length;
  }
}

TEST_F(NpyFiles, MegabytesOfHeaderTakeNoMemory) {
  constexpr std::size_t size = 50'000'000;
  for (const auto& [header, said] : {
           std::pair("{'" + std::string(size, 'k') + "': 3}", "unknown key kkk"),
           std::pair("{'descr': '" + std::string(size, 'f') + "'}", "is of type fff"),
           std::pair("{'descr': '" + std::string(size, 'f'), "not a dictionary"),
           std::pair("{'shape': (" + std::string(size, '1') + ",)}", "more than 2.62"),
           std::pair("{'shape': " + std::string(size, '('), "not a dictionary"),
           std::pair("{" + std::string(size, ' ') + "}", "has no descr"),
       }) {
    const std::string bytes = bytes_of(header, {}, 2);
    put(path(), bytes);
    const auto open = [&] { NpyFile file(path()); };
    EXPECT_EXIT(exit_of(bytes.size() + 4'000'000, open), testing::ExitedWithCode(file_error), said);
  }
}

// Opens the file and reads it as every type; true when all of it was possible or a FileError.
bool survives(const std::string& path, int& opened) {
  try {
    const NpyFile file(path);
    ++opened;
    const auto attempt = [&]<class T>(T) {
      try {
        EXPECT_EQ(file.read<T>().to_vector().size(), static_cast<std::size_t>(file.shape().size()));
      } catch (const FileError&) {
      }
    };
    attempt(double{});
    attempt(float{});
    attempt(Index{});
    attempt(bool{});
    return true;
  } catch (const FileError& error) {
    return std::string_view(error.what()).starts_with(path + ": ");
  } catch (...) {
    return false;
  }
}

TEST_F(NpyFiles, DamagedFilesOnlyEverThrowFileError) {
  const std::string starts[] = {header_of("<f8", "(2, 3)"), header_of(">i4", "(3, 4)", "True"),
                                header_of("|b1", "(48,)"), header_of("<u8", "(6,)"),
                                header_of("<f2", "(2, 3, 4)")};
  const std::string data(48, '\1');
  Damage damage(2, {"{",   "}",   "(",  ")",          ",",     ":",       "'",       "\"",
                    "[",   "0",   "-1", "True",       "False", "'descr'", "'shape'", "'fortran_order'",
                    "<f4", ">u1", "|O", "4294967296", "\\",    "\n",      " ",       "\xFF",
                    "None"});
  int opened = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::string& start = starts[static_cast<std::size_t>(round) % std::size(starts)];
    const int version = 1 + static_cast<int>(damage.below(3));
    std::string bytes = bytes_of(damage(start), data, version);
    if (damage.one_in(10)) bytes = damage(bytes);
    if (damage.one_in(10)) bytes[damage.below(12)] = static_cast<char>(damage.below(256));
    if (damage.one_in(10)) bytes.resize(damage.below(bytes.size()));
    put(path(), bytes);
    ASSERT_TRUE(survives(path(), opened)) << "round " << round << ": " << bytes;
  }
  EXPECT_GT(opened, 20);  // some damage is harmless, so the reading of elements is met as well
  EXPECT_LT(opened, 3000);
}

// ---- Writing that fails

TEST_F(NpyFiles, AFullDiskLeavesTheOldFileAndNothingElse) {
  write_npy(path(), Array<double>::of({1}));
  const std::string old = get(path());
  const auto array = Array<double>::ones({100, 100});
  for (const NpyForm form :
       {NpyForm{}, NpyForm{.fortran_order = true}, NpyForm{.byte_order = std::endian::big}}) {
    for (const rlim_t room : {rlim_t{0}, rlim_t{4}, rlim_t{100}, rlim_t{80000}}) {
      const std::string message = message_of([&] {
        const FullDisk full(room);
        write_npy(path(), array, form);
      });
      EXPECT_TRUE(has(message, path() + ": cannot be written: ")) << message;
      EXPECT_EQ(get(path()), old);
      EXPECT_EQ(files_in_folder(), std::vector<std::string>{"file"});
    }
  }
  EXPECT_EQ(message_of([&] { write_npy("/dev/full", array); }), "/dev/full: is not a regular file");
  EXPECT_TRUE(has(message_of([&] { write_npy(path("no/folder"), array); }),
                  path("no/folder") + ": cannot be created: "));
}

}  // namespace
}  // namespace tapehead
