// R-14 for safetensors: every way a header can lie is an error that names the file and the tensor.

#include "worker/weights/safetensors.h"

#include <cstring>

#include "tests/unit/weights/checkpoint_files.h"

namespace refrain::worker::test {
namespace {

struct Broken {
  const char* name;
  std::string bytes;
  const char* says;
};

// One tensor "w" of the given fields, then `data` bytes of data.
std::string one(const std::string& fields, size_t data) {
  return safetensors("{\"w\":{" + fields + "}}", std::string(data, '\0'));
}

std::string two(const std::string& a, const std::string& b, size_t data) {
  const std::string type = R"("dtype":"U8","shape":[4],"data_offsets":)";
  return safetensors("{\"a\":{" + type + a + "},\"b\":{" + type + b + "}}",
                     std::string(data, '\0'));
}

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + rest;
}

std::vector<Broken> corpus() {
  const std::string good = R"("dtype":"F32","shape":[2,3],"data_offsets":[0,24])";
  return {
      {"Empty", "", "0 bytes"},
      {"SevenBytes", std::string(7, '\1'), "7 bytes"},
      {"LengthBeyondFile", with_length(100, "{}"), "header length 100"},
      {"LengthJustBeyondFile", with_length(3, "{}"), "header length 3"},
      {"LengthHuge", with_length(UINT64_MAX, "{}"), "header length 18446744073709551615"},
      {"LengthSigned", with_length(uint64_t{1} << 63, "{}"), "header length"},
      {"LengthOver100MB", with_length(100'000'001, "{}"), "at most 100000000"},
      {"NoHeader", with_length(0, ""), "JSON object"},
      {"HeaderIsAList", safetensors("[]", ""), "JSON object"},
      {"HeaderIsPadded", safetensors("  {}", ""), "JSON object"},
      {"HeaderIsPickle", safetensors(std::string("\x80\x04K\x01.", 5), ""), "JSON object"},
      {"HeaderCutShort", safetensors("{\"w\":{\"dtype\":", ""), "not valid JSON"},
      {"TwoObjects", safetensors("{}{}", ""), "not valid JSON"},
      {"BadUtf8", safetensors("{\"\xff\":1}", ""), "not valid JSON"},
      {"TensorIsANumber", safetensors("{\"w\":3}", ""), "must not"},
      {"TensorIsNull", safetensors("{\"w\":null}", ""), "must not"},
      {"TensorIsAList", safetensors("{\"w\":[]}", ""), "must not"},
      {"NestedObject", safetensors(R"({"w":{"dtype":{}}})", ""), "must not"},
      {"NoDtype", one(R"("shape":[1],"data_offsets":[0,1])", 1), "\"dtype\" is missing"},
      {"NoShape", one(R"("dtype":"U8","data_offsets":[0,1])", 1), "\"shape\" is missing"},
      {"NoOffsets", one(R"("dtype":"U8","shape":[1])", 1), "\"data_offsets\" is missing"},
      {"UnknownField", one(good + R"(,"strides":[1])", 24), "\"strides\" is not known"},
      {"FieldTwice", one(R"("dtype":"U8",)" + good, 24), "\"dtype\" is there twice"},
      {"UnknownDtype", one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])", 4), "F31"},
      {"DtypeIsANumber", one(R"("dtype":4,"shape":[1],"data_offsets":[0,4])", 4), "must not"},
      {"NegativeDimension", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1),
       "negative"},
      {"FractionDimension", one(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])", 1),
       "fraction"},
      {"HugeDimension",
       one(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])", 1), "too large"},
      {"ProductOverflows",
       one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
       "too large"},
      {"ProductWrapsToFit",  // 2^62 elements of 4 bytes: 0 modulo 2^64
       one(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0), "too large"},
      {"TooManyDimensions",
       one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])", 1), "dimensions"},
      {"ShapeIsText", one(R"("dtype":"U8","shape":"[1]","data_offsets":[0,1])", 1), "must not"},
      {"ShapeInShape", one(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])", 1), "must not"},
      {"OneOffset", one(R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1), "two numbers"},
      {"ThreeOffsets", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])", 1), "two numbers"},
      {"NegativeOffset", one(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])", 1), "negative"},
      {"OffsetsBackwards", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1), "backwards"},
      {"SizeTooSmall", one(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,20])", 20), "need 24"},
      {"SizeTooLarge", one(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,28])", 28), "need 24"},
      {"DataCutShort", one(good, 23), "incomplete"},
      {"NoData", one(good, 0), "incomplete"},
      {"DataLeftOver", one(good, 25), "has 25 bytes of data"},
      {"HoleAtTheFront", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", 2), "no holes"},
      {"HoleBetween", two("[0,4]", "[5,9]", 9), "no holes"},
      {"Overlap", two("[0,4]", "[3,7]", 7), "not overlap"},
      {"SamePlace", two("[0,4]", "[0,4]", 4), "not overlap"},
      {"EndBeyondAll",
       one(R"("dtype":"U8","shape":[9007199254740993],)"
           R"("data_offsets":[0,9007199254740993])",
           8),
       "incomplete"},
      {"NameTwice",
       safetensors(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                   "xy"),
       "twice"},
      {"MetadataIsAList", safetensors(R"({"__metadata__":[]})", ""), "must not"},
      {"MetadataHoldsANumber", safetensors(R"({"__metadata__":{"a":1}})", ""), "must not"},
      {"MetadataHoldsAnObject", safetensors(R"({"__metadata__":{"a":{}}})", ""), "must not"},
      {"MetadataTwice", safetensors(R"({"__metadata__":{},"__metadata__":{}})", ""), "twice"},
      {"DeepNesting", safetensors("{\"w\":" + std::string(1 << 20, '['), ""), "must not"},
  };
}

class BrokenFile : public CheckpointTest, public testing::WithParamInterface<Broken> {};

TEST_P(BrokenFile, R14_IsAnErrorThatNamesTheFile) {
  write("model.safetensors", GetParam().bytes);
  const auto opened = SafetensorsFile::open(dir_ / "model.safetensors");
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(exit_code(opened.error().code), kExitConfig);
  EXPECT_NE(opened.error().message.find("model.safetensors"), std::string::npos);
  EXPECT_NE(opened.error().message.find(GetParam().says), std::string::npos)
      << opened.error().message;
}

INSTANTIATE_TEST_SUITE_P(Corpus, BrokenFile, testing::ValuesIn(corpus()),
                         [](const auto& info) { return info.param.name; });

using Safetensors = CheckpointTest;

TEST_F(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("late":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                             R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},)"
                             R"("early":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}  )";
  write("model.safetensors", safetensors(header, "abcdefgh1234"));
  const auto file = SafetensorsFile::open(dir_ / "model.safetensors");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3U);
  EXPECT_EQ(file->tensors()[0].name, "early");
  EXPECT_EQ(file->tensors()[1].name, "none");
  EXPECT_EQ(file->tensors()[2].name, "late");
  char bytes[5] = {};
  ASSERT_TRUE(file->read(file->tensors()[0], 2, 4, bytes).has_value());
  EXPECT_STREQ(bytes, "cdef");
}

TEST_F(Safetensors, R14_EveryPrefixOfAGoodFileIsAnError) {
  const std::string whole =
      TensorWriter().add<float>("w", "F32", {2, 3}, std::vector<float>(6, 1.0f)).file();
  for (size_t size = 0; size < whole.size(); ++size) {
    write("model.safetensors", whole.substr(0, size));
    EXPECT_FALSE(SafetensorsFile::open(dir_ / "model.safetensors").has_value()) << size;
  }
}

TEST_F(Safetensors, R14_AFileCutShortAfterOpeningIsAnErrorWhenRead) {
  const std::string whole =
      TensorWriter().add<float>("w", "F32", {2, 3}, std::vector<float>(6, 1.0f)).file();
  write("model.safetensors", whole);
  const auto file = SafetensorsFile::open(dir_ / "model.safetensors");
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(dir_ / "model.safetensors", whole.size() - 4);
  float values[6];
  const Status read = file->read(file->tensors()[0], 0, sizeof(values), values);
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().message.find("cut short"), std::string::npos);
}

TEST_F(Safetensors, R14_WhatIsNoFileIsAnError) {
  EXPECT_FALSE(SafetensorsFile::open(dir_ / "nothing.safetensors").has_value());
  EXPECT_FALSE(SafetensorsFile::open(dir_).has_value());
  EXPECT_FALSE(SafetensorsFile::open("/dev/null").has_value());
}

}  // namespace
}  // namespace refrain::worker::test
