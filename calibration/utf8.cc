#include "calibration/utf8.h"

#include <cstddef>
#include <cstdint>

namespace ripplekv {

bool IsValidUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    size_t more = 0;
    uint32_t code = lead;
    uint32_t least = 0;  // smallest code point that needs this length
    if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3, code = lead & 0x07, least = 0x10000;
    } else if (lead >= 0xe0 && lead < 0xf0) {
      more = 2, code = lead & 0x0f, least = 0x800;
    } else if (lead >= 0xc0 && lead < 0xe0) {
      more = 1, code = lead & 0x1f, least = 0x80;
    } else if (lead >= 0x80) {
      return false;
    }
    if (text.size() - i <= more) return false;
    for (size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    i += more + 1;
  }
  return true;
}

}  // namespace ripplekv
