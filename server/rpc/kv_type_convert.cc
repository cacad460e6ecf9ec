#include "server/rpc/kv_type_convert.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace ripplekv {

v1::KvType KvTypeToProto(KvType type) {
  switch (type) {
    case KvType::kF32:
      return v1::KV_TYPE_FP32;
    case KvType::kBf16:
      return v1::KV_TYPE_BF16;
    case KvType::kInt8:
      return v1::KV_TYPE_INT8;
    case KvType::kInt4:
      return v1::KV_TYPE_INT4;
  }
  return v1::KV_TYPE_UNSPECIFIED;
}

absl::StatusOr<std::optional<KvType>> KvTypeFromProto(v1::KvType proto, const std::string& field) {
  if (proto == v1::KV_TYPE_UNSPECIFIED) return std::optional<KvType>();
  for (KvType type : kKvTypes) {
    if (KvTypeToProto(type) == proto) return std::optional<KvType>(type);
  }
  return InvalidField(field, absl::StrCat("is ", static_cast<int>(proto),
                                          ": must be KV_TYPE_FP32, KV_TYPE_BF16, KV_TYPE_INT8 or "
                                          "KV_TYPE_INT4"));
}

}  // namespace ripplekv
