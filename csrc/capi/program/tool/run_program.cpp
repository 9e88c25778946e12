// warptape-run-program: runs a program that torch.export.save or torch.jit.save wrote, without Python.
#include <warptape.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr const char* kUsage =
    "usage: warptape-run-program PROGRAM [INPUT ..] [options]\n"
    "  INPUT            sizes as 8x1x28x28, or sizes@FILE with the raw elements; without a file they are 1\n"
    "  --threads N      threads of a run (default 1)\n"
    "  --memory MIB     the most that tensors may hold; a run that needs more ends with exit code 3\n"
    "  --repeat N       runs that are timed (default 1)\n"
    "  --output FILE    writes the raw elements of all outputs, one after the other\n"
    "  --kernels FILE   writes the kernels that were called: the list of a slim build\n"
    "  --text           prints the program\n";

struct Options {
  std::string program, output, kernels;
  std::vector<std::string> inputs;
  int threads = 1, repeat = 1;
  double memory = 0;
  bool text = false;
};

struct Input {
  wt_dtype dtype;
  std::vector<int64_t> sizes;
  std::vector<char> data;
};

size_t item_size(wt_dtype t) {
  constexpr size_t sizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return sizes[t];
}

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "warptape-run-program: %s\n%s", why.c_str(), kUsage);
  std::exit(2);
}

// Ends after a call that failed: 3 where memory was not enough, else 1.
[[noreturn]] void fail() {
  std::fprintf(stderr, "warptape-run-program: %s\n", wt_last_error());
  std::exit(wt_last_error_kind() == WT_ERROR_OUT_OF_MEMORY ? 3 : 1);
}

double number(const std::string& option, const char* text, double least) {
  char* end = nullptr;
  const double value = text ? std::strtod(text, &end) : 0;
  if (!text || end == text || *end || !(value >= least) || value > 1e9)
    refuse(option + " expects a number of at least " + std::to_string(least).substr(0, 4) + ", got '" +
           (text ? text : "") + "'");
  return value;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--text") {
      o.text = true;
    } else if (arg == "--help" || arg == "-h") {
      std::printf("%s", kUsage);
      std::exit(0);
    } else if (arg.rfind("--", 0) == 0) {
      const char* value = ++i < argc ? argv[i] : nullptr;
      if (arg == "--threads")
        o.threads = static_cast<int>(number(arg, value, 1));
      else if (arg == "--repeat")
        o.repeat = static_cast<int>(number(arg, value, 1));
      else if (arg == "--memory")
        o.memory = number(arg, value, 0.01);
      else if (arg == "--output" && value)
        o.output = value;
      else if (arg == "--kernels" && value)
        o.kernels = value;
      else
        refuse("unknown option, or one without its value: " + arg);
    } else if (o.program.empty()) {
      o.program = arg;
    } else {
      o.inputs.push_back(arg);
    }
  }
  if (o.program.empty()) refuse("expected a program");
  return o;
}

std::vector<char> ones(wt_dtype dtype, size_t count) {
  std::vector<char> out(count * item_size(dtype));
  for (size_t i = 0; i < count; ++i) {
    if (dtype == WT_FLOAT32)
      reinterpret_cast<float*>(out.data())[i] = 1;
    else if (dtype == WT_FLOAT64)
      reinterpret_cast<double*>(out.data())[i] = 1;
    else
      out[i * item_size(dtype)] = 1;  // integers and bools
  }
  return out;
}

Input read_input(const wt_program* program, int i, const std::string& text) {
  Input in;
  int ndim;
  const int64_t* known;
  if (wt_program_input(program, i, &in.dtype, &ndim, &known)) fail();
  in.sizes.assign(known, known + ndim);
  const size_t at = text.find('@');
  const std::string sizes = text.substr(0, at);
  if (!sizes.empty()) {
    in.sizes.clear();
    for (size_t from = 0; from <= sizes.size();) {
      const size_t to = std::min(sizes.find('x', from), sizes.size());
      const std::string one = sizes.substr(from, to - from);
      if (one.empty() || one.size() > 9 || one.find_first_not_of("0123456789") != std::string::npos)
        refuse("input " + std::to_string(i) + " expects sizes as 8x28x28, got '" + text + "'");
      in.sizes.push_back(std::stoll(one));
      from = to + 1;
    }
  }
  size_t count = 1;
  for (int64_t& n : in.sizes) count *= static_cast<size_t>(n < 0 ? (n = 1) : n);
  if (count > (size_t{1} << 40)) refuse("input " + std::to_string(i) + " is too large: '" + text + "'");
  if (at == std::string::npos) {
    in.data = ones(in.dtype, count);
    return in;
  }
  std::ifstream file(text.substr(at + 1), std::ios::binary);
  if (!file) refuse("cannot open " + text.substr(at + 1));
  in.data.assign(std::istreambuf_iterator<char>(file), {});
  if (in.data.size() != count * item_size(in.dtype))
    refuse(text.substr(at + 1) + " has " + std::to_string(in.data.size()) + " bytes, the input " +
           std::to_string(count * item_size(in.dtype)));
  return in;
}

size_t numel(const wt_tensor& t) {
  size_t count = 1;
  for (int d = 0; d < t.ndim; ++d) count *= static_cast<size_t>(t.sizes[d]);
  return count;
}

void print(const wt_tensor& t) {
  std::printf("[");
  for (int d = 0; d < t.ndim; ++d) std::printf("%s%lld", d ? ", " : "", static_cast<long long>(t.sizes[d]));
  std::printf("]:");
  const size_t count = std::min<size_t>(numel(t), 10);
  for (size_t i = 0; i < count; ++i) {
    if (t.dtype == WT_FLOAT32) std::printf(" %.9g", static_cast<const float*>(t.data)[i]);
    if (t.dtype == WT_INT64)
      std::printf(" %lld", static_cast<long long>(static_cast<const int64_t*>(t.data)[i]));
  }
  std::printf("\n");
}

// Microjoules that the processor's packages took so far; -1 where the machine does not count or say it.
double microjoules() {
  double total = -1;
  for (int i = 0; i < 16; ++i) {
    std::ifstream file("/sys/class/powercap/intel-rapl:" + std::to_string(i) + "/energy_uj");
    double one;
    if (file >> one) total = std::max(total, 0.0) + one;
  }
  return total;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (!file.flush()) refuse("cannot write " + path);
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  wt_set_num_threads(o.threads);
  if (o.memory > 0) wt_set_memory_limit(static_cast<size_t>(o.memory * (1 << 20)));
  wt_program* program = wt_program_open(o.program.c_str());
  if (!program) fail();
  if (o.text) std::printf("%s\n", wt_program_text(program));
  const int wanted = wt_program_num_inputs(program);
  if (o.inputs.size() > static_cast<size_t>(wanted))
    refuse("the program has " + std::to_string(wanted) + " inputs, got " + std::to_string(o.inputs.size()));
  std::vector<Input> inputs;
  std::vector<wt_tensor> given;
  for (int i = 0; i < wanted; ++i)
    inputs.push_back(read_input(program, i, i < int(o.inputs.size()) ? o.inputs[size_t(i)] : ""));
  for (const Input& in : inputs)
    given.push_back({in.dtype, static_cast<int>(in.sizes.size()), in.sizes.data(), in.data.data()});

  wt_result* result = wt_program_run(program, given.data(), wanted);  // warms up
  if (!result) fail();
  double best = 1e300;
  const double energy = microjoules();
  for (int n = 0; n < o.repeat; ++n) {
    wt_result_free(result);
    const auto start = std::chrono::steady_clock::now();
    result = wt_program_run(program, given.data(), wanted);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (!result) fail();
    best = std::min(best, took.count());
  }
  const double used = microjoules() - energy;
  std::string bytes;
  for (int i = 0; i < wt_result_count(result); ++i) {
    const wt_tensor t = wt_result_tensor(result, i);
    print(t);
    if (t.data) bytes.append(static_cast<const char*>(t.data), numel(t) * item_size(t.dtype));
  }
  if (!o.output.empty()) write_file(o.output, bytes);
  if (!o.kernels.empty()) write_file(o.kernels, wt_kernels_used());
  std::printf("%.3f ms, tensors held %.2f MiB\n", best, double(wt_peak_memory()) / (1 << 20));
  if (energy >= 0 && used >= 0) std::printf("%.3f mJ a run (all of the processor)\n", used / 1e3 / o.repeat);
  wt_result_free(result);
  wt_program_close(program);
}
