#include "op/aliasing.h"

#include <unordered_map>

namespace warptape {
namespace {

// Made by the first use: declarations of other files come in any order.
std::unordered_map<const OpInfo*, Sharing::Kind>& kinds() {
  static std::unordered_map<const OpInfo*, Sharing::Kind> map;
  return map;
}

}  // namespace

Sharing::Sharing(Kind kind, std::initializer_list<const OpInfo*> ops) {
  for (const OpInfo* op : ops) kinds()[op] = kind;
}

Sharing::Kind Sharing::of(const OpInfo& op) {
  const auto at = kinds().find(&op);
  return at == kinds().end() ? None : at->second;
}

}  // namespace warptape
