#include "calibration/field_reader.h"

#include <limits>

namespace ripplekv {

const FieldReader::Json* FieldReader::Find(const char* field) {
  const auto it = object_.find(field);
  if (it != object_.end()) return &*it;
  Fail(field, "is missing");
  return nullptr;
}

std::string FieldReader::Text(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr) return "";
  if (!value->is_string()) return Fail(field, "is not a string"), "";
  return value->get<std::string>();
}

int FieldReader::Int(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr) return 0;
  if (!value->is_number_integer()) return Fail(field, "is not an integer"), 0;
  const auto wide = value->get<int64_t>();
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    return Fail(field, "is out of range"), 0;
  }
  return static_cast<int>(wide);
}

uint64_t FieldReader::Uint(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr) return 0;
  if (!value->is_number_unsigned()) return Fail(field, "is not an unsigned integer"), 0;
  return value->get<uint64_t>();
}

double FieldReader::Double(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr) return 0;
  if (!value->is_number()) return Fail(field, "is not a number"), 0;
  return value->get<double>();
}

std::optional<double> FieldReader::OptionalDouble(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return Double(field);
}

bool FieldReader::Bool(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return Fail(field, "is not true or false"), false;
  return value->get<bool>();
}

std::vector<double> FieldReader::Doubles(const char* field) {
  const Json* array = Find(field);
  return array == nullptr ? std::vector<double>() : Doubles(field, *array);
}

FieldReader::Table FieldReader::DoublesTable(const char* field) {
  Table table;
  const Json* rows = Find(field);
  if (rows == nullptr) return table;
  if (!rows->is_array()) return Fail(field, "is not a list"), table;
  for (const Json& row : *rows) table.push_back(Doubles(field, row));
  return table;
}

std::optional<RankCorrelation> FieldReader::Correlation(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (!value->is_object()) return Fail(field, "is not an object"), std::nullopt;
  FieldReader reader(*value, absl::StrCat(where_, field, "."));
  const RankCorrelation correlation = {reader.Double("spearman"), reader.Double("low"),
                                       reader.Double("high")};
  Take(reader);
  return correlation;
}

std::vector<int64_t> FieldReader::Int64s(const char* field) {
  std::vector<int64_t> values;
  const Json* array = Find(field);
  if (array == nullptr) return values;
  if (!array->is_array()) return Fail(field, "is not a list"), values;
  for (const Json& value : *array) {
    if (!value.is_number_integer()) {
      return Fail(field, "holds something other than integers"), values;
    }
    values.push_back(value.get<int64_t>());
  }
  return values;
}

std::optional<KvTypes> FieldReader::Types(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::nullopt;
  std::vector<KvType> types;
  if (value->is_array()) {
    for (const Json& name : *value) {
      for (const KvType type : kKvTypes) {
        if (name == KvTypeName(type)) types.push_back(type);
      }
    }
  }
  if (types.size() != 2) return Fail(field, "is not two types"), std::nullopt;
  return KvTypes(types[0], types[1]);
}

void FieldReader::Take(const FieldReader& other) {
  if (status_.ok()) status_ = other.status();
}

void FieldReader::Fail(absl::string_view field, absl::string_view what) {
  if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(where_, field, " ", what));
}

void FieldReader::Read(const char* field, Pooling& value) {
  const std::string name = Text(field);
  for (const Pooling one : {Pooling::kNone, Pooling::kMax, Pooling::kMean}) {
    if (PoolingName(one) == name) return void(value = one);
  }
  Fail(field, "is not max, mean or none");
}

void FieldReader::Read(const char* field, SignalMap& value) {
  const std::string name = Text(field);
  for (const SignalMap one : {SignalMap::kMinMax, SignalMap::kLog, SignalMap::kRank}) {
    if (SignalMapName(one) == name) return void(value = one);
  }
  Fail(field, "is not minmax, log or rank");
}

std::vector<double> FieldReader::Doubles(const char* field, const Json& array) {
  std::vector<double> values;
  if (!array.is_array()) return Fail(field, "is not a list"), values;
  for (const Json& value : array) {
    if (!value.is_number()) return Fail(field, "holds something other than numbers"), values;
    values.push_back(value.get<double>());
  }
  return values;
}

}  // namespace ripplekv
