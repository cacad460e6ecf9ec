#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "calibration/plan_fields.h"
#include "calibration/statistics.h"
#include "kernels/kv_type.h"
#include "nlohmann/json.hpp"

namespace ripplekv {

// Reads the fields of one JSON object; remembers the first thing that is wrong, as DATA_LOSS that
// names the field after `where`. What is wrong or missing reads as 0 or empty.
class FieldReader {
 public:
  using Json = nlohmann::ordered_json;
  using Table = std::vector<std::vector<double>>;

  // The object outlives the reader.
  FieldReader(const Json& object, std::string where) : where_(std::move(where)), object_(object) {}

  // Null where there is none.
  const Json* Find(const char* field);
  std::string Text(const char* field);
  int Int(const char* field);
  uint64_t Uint(const char* field);
  double Double(const char* field);
  // Unset where it is null.
  std::optional<double> OptionalDouble(const char* field);
  bool Bool(const char* field);
  std::vector<double> Doubles(const char* field);
  Table DoublesTable(const char* field);
  std::vector<int64_t> Int64s(const char* field);
  // Unset where it is null.
  std::optional<RankCorrelation> Correlation(const char* field);
  // A list of two names; unset where it is null.
  std::optional<KvTypes> Types(const char* field);
  // A selector or an allocator, which `name_of` names.
  template <typename Variant, typename NameOf>
  Variant Named(const char* field, const NameOf& name_of) {
    Variant made;
    const Json* value = Find(field);
    if (value == nullptr) return made;
    if (!value->is_object()) return Fail(field, "is not an object"), made;
    FieldReader reader(*value, absl::StrCat(where_, field, "."));
    if (MakeNamed(made, name_of, reader.Text("name"))) {
      std::visit(
          [&](auto& one) {
            VisitFields(one, [&](const char* name, auto& member) { reader.Read(name, member); });
          },
          made);
    } else {
      reader.Fail("name", "is not one that there is");
    }
    Take(reader);
    return made;
  }

  // Takes over what another reader came across.
  void Take(const FieldReader& other);
  void Fail(absl::string_view field, absl::string_view what);

  const absl::Status& status() const { return status_; }

 private:
  void Read(const char* field, int& value) { value = Int(field); }
  void Read(const char* field, uint64_t& value) { value = Uint(field); }
  void Read(const char* field, double& value) { value = Double(field); }
  void Read(const char* field, bool& value) { value = Bool(field); }
  void Read(const char* field, std::vector<double>& value) { value = Doubles(field); }
  void Read(const char* field, std::vector<int64_t>& value) { value = Int64s(field); }
  void Read(const char* field, Pooling& value);
  void Read(const char* field, SignalMap& value);
  std::vector<double> Doubles(const char* field, const Json& array);

  std::string where_;
  const Json& object_;
  absl::Status status_;
};

}  // namespace ripplekv
