// The words, numbers and signs of graphs and programs as text.
#pragma once

#include <algorithm>
#include <charconv>

#include "core/device.h"
#include "core/dtype.h"
#include "core/errors.h"

namespace warptape::graph {

// What is not as it should be is a ValueError that names the line.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string& expected) const {
    refuse(message("expected ", expected, " at '", text_.substr(at_, 20), "'"), at_);
  }
  [[noreturn]] void refuse(const std::string& why, size_t at) const {
    const auto line = 1 + std::ranges::count(text_.substr(0, at), '\n');
    throw ValueError(message("graph: line ", line, ": ", why));
  }
  // Where the next word begins.
  size_t at() {
    skip();
    return at_;
  }
  bool accept(std::string_view word) {
    skip();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!accept(word)) fail(message("'", word, "'"));
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool done() { return peek() == '\0' && at_ >= text_.size(); }
  std::string_view word() {
    skip();
    const size_t from = at_;
    while (at_ < text_.size() && in_word(text_[at_])) ++at_;
    if (at_ == from) fail("a name");
    return text_.substr(from, at_ - from);
  }
  template <class T>
  T number(int base = 10) {
    skip();
    T out{};
    const char *begin = text_.data() + at_, *end = text_.data() + text_.size();
    std::from_chars_result r;
    if constexpr (std::is_floating_point_v<T>)
      r = std::from_chars(begin, end, out);
    else
      r = std::from_chars(begin, end, out, base);
    if (r.ec != std::errc() || r.ptr == begin) fail("a number");
    at_ += static_cast<size_t>(r.ptr - begin);
    return out;
  }
  // The name that comes, if one does.
  std::string_view peek_word() {
    skip();
    size_t end = at_;
    while (end < text_.size() && in_word(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }
  // Whether the number that comes is a float: with a point, an exponent, or none.
  bool float_comes() {
    skip();
    const size_t sign = text_.substr(at_).starts_with('-');
    const std::string_view rest = text_.substr(at_ + sign);
    if (rest.starts_with("inf") || rest.starts_with("nan")) return peek_word().size() <= 3;
    const size_t digits = rest.find_first_not_of("0123456789");
    return digits != 0 && digits != rest.npos && (rest[digits] == '.' || rest[digits] == 'e');
  }
  std::string string() {
    expect("\"");
    std::string out;
    for (;; ++at_) {
      if (at_ >= text_.size()) fail("the end of a string");
      if (text_[at_] == '"') break;
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      unsigned byte = 0;
      const char* digits = text_.data() + at_ + 2;
      if (at_ + 4 > text_.size() || text_[at_ + 1] != 'x' ||
          std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2)
        fail("an escape as \\x0a");
      out += static_cast<char>(byte);
      at_ += 3;
    }
    ++at_;
    return out;
  }

  // item(), separated by commas, up to `end`.
  template <class F>
  void list(std::string_view end, F&& item) {
    if (accept(end)) return;
    do item();
    while (accept(","));
    expect(end);
  }
  DType dtype() {
    const std::string_view text = word();
    for (int t = 0; t < kNumDTypes; ++t)
      if (text == name(static_cast<DType>(t))) return static_cast<DType>(t);
    fail("a dtype before this");
  }
  Device device() {
    std::string text(word());
    if (accept(":")) text += message(":", number<int>());
    try {
      return parse_device(text);
    } catch (const DeviceError&) {
      fail("a device before this");
    }
  }

 private:
  // Letters beyond ASCII are bytes of UTF-8.
  static bool in_word(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalnum(byte) || c == '_' || byte >= 128;
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace warptape::graph
