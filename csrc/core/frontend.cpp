#include "core/frontend.h"

namespace warptape {
namespace {
Frontend* installed = nullptr;
}

Frontend::~Frontend() = default;
void Frontend::warn(const char*, Warning) {}
std::string Frontend::stack(bool) { return {}; }
std::string Frontend::traceback() { return {}; }
std::string Frontend::call_site() { return {}; }
std::shared_ptr<void> Frontend::watch_calls(const ProfilerOptions&) { return nullptr; }
void* Frontend::release_gil() { return nullptr; }
void Frontend::reacquire_gil(void*) {}
void Frontend::release_object(void*) {}
bool Frontend::accesses(const Storage&) { return true; }
const wtx_python* Frontend::extension_functions() { return nullptr; }
TapeFrontend* Frontend::tape() { return nullptr; }

Frontend& frontend() {
  if (installed) return *installed;
  static auto* none = new Frontend;
  return *none;
}

void install(Frontend& frontend) { installed = &frontend; }

}  // namespace warptape
