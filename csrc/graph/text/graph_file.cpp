#include "graph/text/graph_file.h"

#include <charconv>
#include <cstring>
#include <map>

#include "core/checksum/crc32.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

constexpr const char* kFormat = "warptape.graph.1";
constexpr const char *kText = "__graph__", *kSpec = "__spec__";

struct Code {
  DType dtype;
  const char* code;
};
constexpr Code kCodes[] = {{DType::Bool, "BOOL"},   {DType::UInt8, "U8"},      {DType::Int8, "I8"},
                           {DType::Int16, "I16"},   {DType::Int32, "I32"},     {DType::Int64, "I64"},
                           {DType::Float16, "F16"}, {DType::BFloat16, "BF16"}, {DType::Float32, "F32"},
                           {DType::Float64, "F64"}, {DType::Complex64, "C64"}};

const char* code_of(DType t, const std::string& name) {
  for (const Code& c : kCodes)
    if (c.dtype == t) return c.code;
  throw NotImplementedError(message("graph: safetensors has no dtype for constant \"", name, "\" of ", t));
}

std::string json_string(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    char escaped[8];
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 32 || c == '"' || c == '\\') {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// What a header says of one tensor.
struct Entry {
  std::string code;
  Shape sizes;
  size_t begin = 0, end = 0;
};

// The JSON that headers of safetensors files consist of.
class Header {
 public:
  explicit Header(std::string_view text) : text_(text) {
    object([&](const std::string& key) {
      if (key == "__metadata__")
        object([&](const std::string& k) { metadata[k] = string(); });
      else
        entry(entries[key]);
    });
    skip();
    if (at_ != text_.size()) fail();
  }
  std::map<std::string, std::string> metadata;
  std::map<std::string, Entry> entries;

 private:
  [[noreturn]] void fail() const {
    throw ValueError(message("graph: the file's header is broken at byte ", 8 + at_));
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail();
  }
  template <class F>
  void object(F&& member) {
    expect('{');
    if (accept('}')) return;
    do {
      const std::string key = string();
      expect(':');
      member(key);
    } while (accept(','));
    expect('}');
  }
  std::string string() {
    expect('"');
    std::string out;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      unsigned code = 256;  // what this library escapes: \u00xx
      const char* digits = text_.data() + at_ + 2;
      if (at_ + 6 > text_.size() || text_[at_ + 1] != 'u' ||
          std::from_chars(digits, digits + 4, code, 16).ptr != digits + 4 || code > 127)
        fail();
      out += static_cast<char>(code);
      at_ += 5;
    }
    expect('"');
    return out;
  }
  int64_t number() {
    skip();
    int64_t out = 0;
    const char* begin = text_.data() + at_;
    const auto r = std::from_chars(begin, text_.data() + text_.size(), out);
    if (r.ec != std::errc() || out < 0) fail();
    at_ += static_cast<size_t>(r.ptr - begin);
    return out;
  }
  Shape numbers() {
    Shape out;
    expect('[');
    if (accept(']')) return out;
    do out.push_back(number());
    while (accept(','));
    expect(']');
    return out;
  }
  void entry(Entry& e) {
    Shape range;
    object([&](const std::string& key) {
      if (key == "dtype")
        e.code = string();
      else if (key == "shape")
        e.sizes = numbers();
      else if (key == "data_offsets")
        range = numbers();
      else
        fail();
    });
    if (range.size() != 2 || range[0] > range[1]) fail();
    e.begin = static_cast<size_t>(range[0]);
    e.end = static_cast<size_t>(range[1]);
  }

  std::string_view text_;
  size_t at_ = 0;
};

class File {
 public:
  explicit File(std::string_view bytes) : header_(header_of(bytes)) {
    data_ = bytes.substr(8 + header_size(bytes));
    WT_CHECK(header_.metadata["format"] == kFormat, ValueError,
             "graph: the file is no graph of this library: its format is '", header_.metadata["format"],
             "' instead of '", kFormat, "'");
    char crc[9];
    std::snprintf(crc, sizeof crc, "%08x", crc32(0, data_.data(), data_.size()));
    WT_CHECK(header_.metadata["crc32"] == crc, ValueError,
             "graph: the file is damaged or cut: its checksum is ", crc, " instead of ",
             header_.metadata["crc32"]);
    size_t bytes_of_entries = 0;
    for (const auto& [name, e] : header_.entries) {
      WT_CHECK(e.end <= data_.size(), ValueError, "graph: the file is cut: it has no data for ", name);
      bytes_of_entries += e.end - e.begin;
    }
    WT_CHECK(bytes_of_entries == data_.size(), ValueError, "graph: the file's header does not fit its data");
  }

  std::string_view text(const char* name) const {
    const Entry& e = find(name);
    return data_.substr(e.begin, e.end - e.begin);
  }
  Tensor tensor(std::string_view name) const {
    const Entry& e = find(std::string(name));
    const auto code = std::ranges::find_if(kCodes, [&](const Code& c) { return e.code == c.code; });
    WT_CHECK(code != std::end(kCodes), ValueError, "graph: unknown dtype ", e.code, " of constant ", name);
    const auto bytes = static_cast<size_t>(numel_of(e.sizes)) * itemsize(code->dtype);
    WT_CHECK(bytes == e.end - e.begin, ValueError, "graph: constant ", name, " has ", e.end - e.begin,
             " bytes of data instead of ", bytes);
    Tensor t = empty(e.sizes, {code->dtype, {}});
    if (bytes) std::memcpy(t.data(), data_.data() + e.begin, bytes);
    return t;
  }

 private:
  static size_t header_size(std::string_view bytes) {
    uint64_t size = 0;
    WT_CHECK(bytes.size() >= 8, ValueError, "graph: the file is cut: it has ", bytes.size(), " bytes");
    std::memcpy(&size, bytes.data(), 8);
    WT_CHECK(size <= bytes.size() - 8, ValueError, "graph: the file is cut: its header has ", size,
             " bytes, and the file ", bytes.size());
    return size;
  }
  static Header header_of(std::string_view bytes) { return Header(bytes.substr(8, header_size(bytes))); }
  const Entry& find(const std::string& name) const {
    const auto e = header_.entries.find(name);
    WT_CHECK(e != header_.entries.end(), ValueError, "graph: the file has no tensor \"", name, "\"");
    return e->second;
  }

  Header header_;
  std::string_view data_;
};

// The tensors of a file in the making.
class Builder {
 public:
  void add(const std::string& name, const char* code, IntList sizes, std::string_view bytes) {
    header_ +=
        message(header_.empty() ? "" : ",", json_string(name), ":{\"dtype\":\"", code, "\",\"shape\":[");
    const char* comma = "";
    for (int64_t n : sizes) header_ += message(std::exchange(comma, ","), n);
    header_ += message("],\"data_offsets\":[", data_.size(), ",", data_.size() + bytes.size(), "]}");
    data_ += bytes;
  }
  void add(const std::string& name, const std::string& text) {
    add(name, "U8", Shape{static_cast<int64_t>(text.size())}, text);
  }
  std::string finish() {
    char crc[9];
    std::snprintf(crc, sizeof crc, "%08x", crc32(0, data_.data(), data_.size()));
    std::string header =
        message("{\"__metadata__\":{\"format\":\"", kFormat, "\",\"crc32\":\"", crc, "\"},", header_, "}");
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + header + data_;
  }

 private:
  std::string header_, data_;
};

}  // namespace

std::string to_bytes(const Graph& graph, const std::string& spec) {
  Builder file;
  for (const GraphValue& v : graph.values) {
    if (v.kind != GraphValue::Kind::Constant) continue;
    const Tensor t = raw_contiguous(moved(v.tensor, {}));
    file.add(v.name, code_of(v.dtype, v.name), t.sizes(),
             {static_cast<const char*>(t.data()), static_cast<size_t>(t.numel()) * t.itemsize()});
  }
  file.add(kText, graph.text());
  file.add(kSpec, spec);
  return file.finish();
}

LoadedGraph from_bytes(std::string_view bytes) {
  const File file(bytes);
  return {Graph::parse(file.text(kText), [&](std::string_view name) { return file.tensor(name); }),
          std::string(file.text(kSpec))};
}

}  // namespace warptape::graph
