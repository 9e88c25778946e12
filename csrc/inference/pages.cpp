#include "inference/pages.h"

#include <algorithm>

#include "core/errors.h"

namespace warptape::inference {
namespace {

// FNV-1a over the words.
uint64_t hash_of(int64_t salt, int64_t parent, std::span<const Token> tokens) {
  uint64_t h = 0xcbf29ce484222325u;
  const auto mix = [&h](uint64_t word) { h = (h ^ word) * 0x100000001b3u; };
  mix(static_cast<uint64_t>(salt));
  mix(static_cast<uint64_t>(parent));
  for (Token t : tokens) mix(static_cast<uint32_t>(t));
  return h;
}

}  // namespace

PagePool::PagePool(int64_t pages) {
  WT_CHECK(pages > 0 && pages <= int64_t{1} << 30, ValueError, "expected 1 to 2^30 pages, got ", pages);
  pages_.resize(static_cast<size_t>(pages));
  for (PageId id = 0; id < pages; ++id) pages_[static_cast<size_t>(id)].place = idle_.insert(idle_.end(), id);
}

PageId PagePool::find_page(int64_t salt, int64_t parent, std::span<const Token> tokens) const {
  const auto [first, last] = published_.equal_range(hash_of(salt, parent, tokens));
  for (auto it = first; it != last; ++it) {
    const Page& page = pages_[static_cast<size_t>(it->second)];
    if (page.salt == salt && page.parent == parent && std::ranges::equal(page.tokens, tokens))
      return it->second;
  }
  return -1;
}

std::vector<PageId> PagePool::find(int64_t salt, std::span<const Token> tokens) const {
  std::vector<PageId> out;
  int64_t parent = kNoContent;
  for (; tokens.size() >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
    const PageId id = find_page(salt, parent, tokens.first(kPageTokens));
    if (id < 0) break;
    out.push_back(id);
    parent = content(id);
  }
  return out;
}

void PagePool::share(PageId page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (p.references++ == 0) idle_.erase(p.place);
}

void PagePool::forget(Page& page, PageId id) {
  if (page.content == kNoContent) return;
  const auto [first, last] = published_.equal_range(hash_of(page.salt, page.parent, page.tokens));
  published_.erase(std::find_if(first, last, [id](const auto& entry) { return entry.second == id; }));
  page.content = kNoContent;
  page.tokens.clear();
}

PageId PagePool::allocate() {
  if (idle_.empty()) return -1;
  const PageId id = idle_.front();
  idle_.pop_front();
  Page& p = pages_[static_cast<size_t>(id)];
  forget(p, id);
  p.references = 1;
  return id;
}

int64_t PagePool::publish(PageId page, int64_t salt, int64_t parent, std::span<const Token> tokens) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (p.content != kNoContent) return p.content;
  const PageId known = find_page(salt, parent, tokens);
  if (known >= 0) return content(known);
  p.content = ++contents_;
  p.parent = parent;
  p.salt = salt;
  p.tokens.assign(tokens.begin(), tokens.end());
  published_.emplace(hash_of(salt, parent, tokens), page);
  return p.content;
}

void PagePool::release(PageId page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (--p.references > 0) return;
  // What is known goes last, so that pages without content are taken before any of it.
  p.place = idle_.insert(p.content == kNoContent ? idle_.begin() : idle_.end(), page);
}

}  // namespace warptape::inference
