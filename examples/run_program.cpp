// Runs a program that torch.export.save or torch.jit.save wrote, without Python.
//
//   dir=$(python -c "import warptape, os; print(os.path.dirname(warptape.__file__))")
//   g++ -std=c++17 run_program.cpp -I$dir/include -L$dir -lwarptape -Wl,-rpath,$dir -o run_program
//   ./run_program model.safetensors 8x3x32x32 [input.bin]
//
// For each input: its sizes, and a file with its raw elements (without one they are all 1). Prints the shape
// and the first elements of each output, and the time of a run.
#include <warptape.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

size_t item_size(wt_dtype t) {
  constexpr size_t sizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return sizes[t];
}

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> out;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    out.push_back(std::stoll(text.substr(at), &length));
    at += length + 1;
  }
  return out;
}

std::vector<char> ones(wt_dtype dtype, size_t count) {
  std::vector<char> out(count * item_size(dtype));
  for (size_t i = 0; i < count; ++i) {
    if (dtype == WT_FLOAT32) reinterpret_cast<float*>(out.data())[i] = 1;
    else if (dtype == WT_FLOAT64) reinterpret_cast<double*>(out.data())[i] = 1;
    else out[i * item_size(dtype)] = 1;  // integers and bools
  }
  return out;
}

void print(const wt_tensor& t) {
  size_t count = 1;
  std::printf("[");
  for (int d = 0; d < t.ndim; ++d) {
    std::printf("%s%lld", d ? ", " : "", static_cast<long long>(t.sizes[d]));
    count *= static_cast<size_t>(t.sizes[d]);
  }
  std::printf("]:");
  for (size_t i = 0; i < count && i < 8; ++i) {
    if (t.dtype == WT_FLOAT32) std::printf(" %.9g", static_cast<const float*>(t.data)[i]);
    if (t.dtype == WT_INT64) std::printf(" %lld", static_cast<const long long*>(t.data)[i]);
  }
  std::printf("\n");
}

int fail() {
  std::fprintf(stderr, "run_program: %s\n", wt_last_error());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s program [sizes [file]] ..\n", argv[0]);
    return 2;
  }
  wt_program* program = wt_program_open(argv[1]);
  if (!program) return fail();
  std::vector<std::vector<int64_t>> sizes;
  std::vector<std::vector<char>> data;
  std::vector<wt_tensor> inputs;
  int arg = 2;
  for (int i = 0; i < wt_program_num_inputs(program); ++i) {
    wt_dtype dtype;
    int ndim;
    const int64_t* known;
    if (wt_program_input(program, i, &dtype, &ndim, &known)) return fail();
    sizes.push_back(arg < argc ? parse_sizes(argv[arg++]) : std::vector<int64_t>(known, known + ndim));
    size_t count = 1;
    for (int64_t& n : sizes.back()) count *= static_cast<size_t>(n < 0 ? (n = 1) : n);
    std::ifstream file(arg < argc && argv[arg][0] != '\0' && (argv[arg][0] < '0' || argv[arg][0] > '9') ? argv[arg] : "",
                       std::ios::binary);
    if (file) {
      ++arg;
      data.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      data.back().resize(count * item_size(dtype));
    } else {
      data.push_back(ones(dtype, count));
    }
    inputs.push_back({dtype, static_cast<int>(sizes.back().size()), sizes.back().data(), data.back().data()});
  }
  const auto start = std::chrono::steady_clock::now();
  wt_result* result = wt_program_run(program, inputs.data(), static_cast<int>(inputs.size()));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (!result) return fail();
  for (int i = 0; i < wt_result_count(result); ++i) print(wt_result_tensor(result, i));
  std::printf("%.3f ms\n", took.count());
  wt_result_free(result);
  wt_program_close(program);
}
