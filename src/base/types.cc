// Sizes, names and classes of the element types; names of operations and collectives.
#include "tutti/types.h"

#include <array>

#include "base/names.h"

namespace tutti {
namespace {

enum class NumberClass : std::uint8_t { kIntegral, kFloating, kComplex, kOpaque };

struct DataTypeInfo {
  DataType dtype;
  std::uint8_t bytes;
  NumberClass number_class;
  std::string_view name;
};

// In the order of the enumeration; the static_assert below keeps it so.
constexpr std::array<DataTypeInfo, kDataTypeCount> kDataTypes{{
    {DataType::kBool, 1, NumberClass::kIntegral, "bool"},
    {DataType::kUint8, 1, NumberClass::kIntegral, "u8"},
    {DataType::kInt8, 1, NumberClass::kIntegral, "i8"},
    {DataType::kUint16, 2, NumberClass::kIntegral, "u16"},
    {DataType::kInt16, 2, NumberClass::kIntegral, "i16"},
    {DataType::kUint32, 4, NumberClass::kIntegral, "u32"},
    {DataType::kInt32, 4, NumberClass::kIntegral, "i32"},
    {DataType::kUint64, 8, NumberClass::kIntegral, "u64"},
    {DataType::kInt64, 8, NumberClass::kIntegral, "i64"},
    {DataType::kFloat8E4M3fn, 1, NumberClass::kFloating, "f8e4m3fn"},
    {DataType::kFloat8E5M2, 1, NumberClass::kFloating, "f8e5m2"},
    {DataType::kFloat8E4M3fnuz, 1, NumberClass::kFloating, "f8e4m3fnuz"},
    {DataType::kFloat8E5M2fnuz, 1, NumberClass::kFloating, "f8e5m2fnuz"},
    {DataType::kFloat8E8M0fnu, 1, NumberClass::kFloating, "f8e8m0fnu"},
    {DataType::kBfloat16, 2, NumberClass::kFloating, "bf16"},
    {DataType::kFloat16, 2, NumberClass::kFloating, "f16"},
    {DataType::kFloat32, 4, NumberClass::kFloating, "f32"},
    {DataType::kFloat64, 8, NumberClass::kFloating, "f64"},
    {DataType::kComplex32, 4, NumberClass::kComplex, "c32"},
    {DataType::kComplex64, 8, NumberClass::kComplex, "c64"},
    {DataType::kComplex128, 16, NumberClass::kComplex, "c128"},
    {DataType::kByte, 1, NumberClass::kOpaque, "byte"},
}};

static_assert(in_order<&DataTypeInfo::dtype>(kDataTypes), "kDataTypes must follow the order of DataType");

// Null for a value outside the enumeration: it may come from another process.
const DataTypeInfo* info(DataType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDataTypes.size() ? &kDataTypes[index] : nullptr;
}

bool is_class(DataType dtype, NumberClass number_class) noexcept {
  const DataTypeInfo* found = info(dtype);
  return found != nullptr && found->number_class == number_class;
}

constexpr std::array<std::string_view, kReduceOpCount> kReduceOpNames{"sum",  "avg", "product", "min",       "max",
                                                                      "band", "bor", "bxor",    "premul_sum"};
constexpr std::array<std::string_view, kCollectiveCount> kCollectiveNames{
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier"};

}  // namespace

std::size_t size_of(DataType dtype) noexcept {
  const DataTypeInfo* found = info(dtype);
  return found != nullptr ? found->bytes : 1;
}

std::string_view to_string(DataType dtype) noexcept {
  const DataTypeInfo* found = info(dtype);
  return found != nullptr ? found->name : "unknown";
}

std::string_view to_string(ReduceOp op) noexcept {
  const auto index = static_cast<std::size_t>(op);
  return index < kReduceOpNames.size() ? kReduceOpNames[index] : "unknown";
}

std::string_view to_string(Collective collective) noexcept {
  const auto index = static_cast<std::size_t>(collective);
  return index < kCollectiveNames.size() ? kCollectiveNames[index] : "unknown";
}

bool is_floating(DataType dtype) noexcept { return is_class(dtype, NumberClass::kFloating); }
bool is_complex(DataType dtype) noexcept { return is_class(dtype, NumberClass::kComplex); }
bool is_integral(DataType dtype) noexcept { return is_class(dtype, NumberClass::kIntegral); }

}  // namespace tutti
