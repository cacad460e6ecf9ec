#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// absl::StrCat that takes std::string_view too, where absl's string_view is a type of its own
// (Debian's build).
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  const auto piece = [](const auto& part) -> decltype(auto) {
    if constexpr (std::is_same_v<std::decay_t<decltype(part)>, std::string_view>) {
      return absl::string_view(part.data(), part.size());
    } else {
      return (part);
    }
  };
  return absl::StrCat(piece(parts)...);
}

}  // namespace ripplekv
