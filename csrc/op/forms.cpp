#include "op/forms.h"

#include <algorithm>

namespace warptape {
namespace {

// Names of forms, by whose addresses forms are known.
struct FormName {
  std::string text;
  const OpInfo* of;
  bool over_lists;
};
std::deque<FormName>& form_names() {  // ops are made and asked for by static constructors of any file
  static auto* names = new std::deque<FormName>();
  return *names;
}
const FormName* find_form(const OpInfo& op) {
  const auto at =
      std::ranges::find_if(form_names(), [&](const auto& f) { return op.name == f.text.c_str(); });
  return at == form_names().end() ? nullptr : &*at;
}

std::vector<Arg> args_of(const OpInfo& of, std::span<const ArgType> types) {
  std::vector<Arg> args;
  const bool switched = types.size() == of.args.size();
  for (const Arg& arg : of.args) {
    if ((arg.marks & kInPlace) && !switched) continue;
    args.push_back(arg);
    if (!switched) args.back().marks &= static_cast<uint16_t>(~kUpdated);
  }
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] == ArgType::Tensor && args.at(i).def.kind != ArgDefault::Kind::None) args[i].def = {};
  return args;
}

}  // namespace

const char* form_name(std::string name, const OpInfo& of) {
  return form_names().emplace_back(std::move(name), &of, false).text.c_str();
}
const char* list_form_name(std::string name, const OpInfo* of) {
  return form_names().emplace_back(std::move(name), of, true).text.c_str();
}

bool is_over_lists(const OpInfo& op) {
  const FormName* form = find_form(op);
  return form && (form->over_lists || (form->of && is_over_lists(*form->of)));
}

FormDeclaration declare_overload(const OpInfo& of, std::span<const ArgType> types, const OpFacts& own,
                                 const char* doc, std::source_location line, std::span<const Arg> args) {
  WT_CHECK(of.return_names.empty(), Error, of.name, ": a form of an op with named results is written out");
  OpFacts facts = of;
  if (own.flags & kPlaces) facts.flags &= ~(kPlaces | kOut);
  facts = facts | own;
  if (types[0] != ArgType::Tensor && types[0] != ArgType::TensorList) facts.flags &= ~kMethod;
  return {{form_name(of.name, of), line},
          facts,
          args.empty() ? args_of(of, types) : std::vector<Arg>(args.begin(), args.end()),
          doc ? doc : of.doc};
}

FormDeclaration declare_in_place(const OpInfo& of, std::span<const ArgType> types, const OpFacts& own,
                                 const char* doc, std::source_location line) {
  WT_CHECK(of.return_names.empty(), Error, of.name, ": a form of an op with named results is written out");
  FormDeclaration form{{form_name(message(of.name, "_"), of), line},
                       facts_in_place(of) | own,
                       args_of(of, types),
                       doc ? doc : of.doc};
  form.args[0].marks |= kWritten;
  return form;
}

const OpInfo* form_of(const OpInfo& op) {
  if (op.inplace_of) return op.inplace_of;
  const FormName* form = find_form(op);
  return form ? form->of : nullptr;
}

}  // namespace warptape
