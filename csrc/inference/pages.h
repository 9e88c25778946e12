// Pages of keys and values: who holds which, and what idle ones still know.
#pragma once

#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/export.h"
#include "kernels/attention/paged_attention.h"

namespace warptape::inference {

using Token = int32_t;
using PageId = int32_t;
inline constexpr int64_t kPageTokens = kernels::kPagedTokens;

inline constexpr int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Every page has a reference count. A full page can be published: then whoever begins with the same tokens
// finds it, also after its holders are gone, until it is needed for something else (the least recently
// released one first). A published page has a content number, never given twice; the page before it in the
// sequence is named by that number, so a chain that lost a page in its middle is not found beyond it.
class WT_API PagePool {
 public:
  static constexpr int64_t kNoContent = 0;  // before a sequence's first page

  explicit PagePool(int64_t pages);

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }
  int64_t idle() const { return static_cast<int64_t>(idle_.size()); }  // that nobody holds
  int64_t references(PageId page) const { return pages_[static_cast<size_t>(page)].references; }

  // The published pages that hold the first tokens of a sequence, as many as are found. Sequences with
  // another `salt` (adapter, tenant) have pages of their own. Takes no reference.
  std::vector<PageId> find(int64_t salt, std::span<const Token> tokens) const;
  // Takes a reference to a page that find() named.
  void share(PageId page);
  // A page with one reference and nothing known in it, or -1 where all are held.
  PageId allocate();
  // States that a held page is full of `tokens`, which follow the content `parent`; returns its content
  // number. Where another page has the same content already, that one stays the published one, and its number
  // is returned.
  int64_t publish(PageId page, int64_t salt, int64_t parent, std::span<const Token> tokens);
  int64_t content(PageId page) const { return pages_[static_cast<size_t>(page)].content; }
  void release(PageId page);

 private:
  struct Page {
    int64_t references = 0;
    int64_t content = kNoContent, parent = kNoContent, salt = 0;
    std::vector<Token> tokens;          // of a published page
    std::list<PageId>::iterator place;  // in idle_, while nobody holds it
  };

  PageId find_page(int64_t salt, int64_t parent, std::span<const Token> tokens) const;  // or -1
  void forget(Page& page, PageId id);

  std::vector<Page> pages_;
  std::list<PageId> idle_;                               // to be taken from the front
  std::unordered_multimap<uint64_t, PageId> published_;  // by hash; the tokens are compared
  int64_t contents_ = kNoContent;
};

}  // namespace warptape::inference
