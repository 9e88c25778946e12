"""The API pages of the site, from signatures and docstrings: a hook of mkdocs, which .mkdocs.yml names.

Nothing of it is committed. A page has what its module calls public (public_names); a thing that several
modules have is described once, where its home is. tests/python/names/test_docstrings.py asks of the same
names that none is without a docstring.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from types import MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from warptape._missing import public_name, torch_names

GROUPS = {
    "Tensors": (
        "warptape Tensor linalg fft special signal.windows masked nested sparse random return_types storage "
        "serialization utils.safetensors backends.opt_einsum"
    ),
    "Autograd": (
        "autograd autograd.function autograd.forward_ad autograd.functional autograd.graph "
        "autograd.gradcheck func functorch amp amp.grad_scaler amp.cpu cuda.amp cuda.amp.common"
    ),
    "Modules": (
        "nn nn.functional nn.init nn.attention nn.attention.bias nn.attention.flex_attention "
        "nn.attention.varlen "
        "nn.modules.module nn.modules.utils nn.parameter nn.utils nn.utils.rnn nn.utils.parametrize "
        "nn.utils.parametrizations nn.utils.prune nn.utils.spectral_norm nn.utils.stateless "
        "nn.utils.weight_norm nn.grad nn.parallel nn.parallel.scatter_gather"
    ),
    "Training": (
        "optim optim.lr_scheduler optim.optimizer optim.swa_utils utils.data utils.checkpoint distributions "
        "distributions.constraints distributions.constraint_registry distributions.utils quasirandom hub"
    ),
    "Graphs": (
        "compiler export export.passes fx fx.graph fx.immutable_collections fx.node "
        "fx.operator_schemas fx.proxy fx.subgraph_rewriter fx.passes.shape_prop "
        "fx.passes.graph_drawer jit onnx library graph_drawing overrides"
    ),
    "Several processes": (
        "distributed distributed.run distributed.functional distributed.nn.functional distributed.checkpoint "
        "distributed.checkpoint.state_dict distributed.checkpoint.stateful "
        "distributed.checkpoint.format_utils distributed.device_mesh distributed.fsdp distributed.tensor "
        "distributed.tensor.parallel distributed.pipelining distributed.optim distributed.rpc "
        "distributed.algorithms "
        "distributed.algorithms.ddp_comm_hooks.default_hooks "
        "distributed.algorithms.ddp_comm_hooks.post_localSGD_hook "
        "distributed.algorithms.ddp_comm_hooks.powerSGD_hook "
        "distributed.algorithms.model_averaging.averagers distributed.algorithms.model_averaging.utils "
        "distributed.algorithms.textbook distributed.elastic.multiprocessing.errors "
        "distributed.elastic.rendezvous distributed.diagnose "
        "distributed.stragglers "
        "multiprocessing futures"
    ),
    "Parallel training": (
        "parallel parallel.tensor parallel.shard parallel.shard.wrap parallel.pipeline parallel.context "
        "parallel.experts parallel.dtensor parallel.plan parallel.verification"
    ),
    "Models": (
        "models inference serve rl ao.quantization ao.binary ao.distillation ao.low_precision ao.pruning "
        "ao.report ao.shrink"
    ),
    "Devices": (
        "accelerator cpu cuda cuda.nvtx mps xpu backends.cpu backends.cuda backends.cudnn backends.mps"
    ),
    "Tools": (
        "utils tools.trace profiler autograd.profiler autograd.profiler_python autograd.profiler_util "
        "autograd.profiler_trace testing doctor "
        "utils.benchmark utils.collect_env utils.cpp_extension utils.debugging utils.deterministic "
        "utils.dlpack utils.flop_counter utils.hooks utils.module_tracker torch torch.coverage torch.wheel"
    ),
}
MODULES = [name for names in GROUPS.values() for name in names.split()]
ROOT = "warptape"


class Entry(NamedTuple):
    """A public name: its dotted path, the module or class that has it, and what it is, unbound."""

    path: str
    holder: Any
    value: Any


FIELD = type(Entry.path)  # of a named tuple


def full(name: str) -> str:
    """The dotted name of a page's module, or of the class Tensor, which has a page of its own."""
    return ROOT if name == ROOT else f"{ROOT}.{name}"


def load(name: str) -> Any:
    """The module, or class, of a page."""
    if name == "Tensor":
        return importlib.import_module(ROOT).Tensor
    return importlib.import_module(full(name))


def home_of(value: Any) -> str:
    """The module that a value is from; of ops, which have none, the package."""
    return public_name(getattr(value, "__module__", None) or ROOT)


def is_described(value: Any) -> bool:
    """Whether a value has a docstring of its own to have: no module, number, dtype or alias of a type."""
    return not isinstance(value, ModuleType) and (callable(value) or inspect.isdatadescriptor(value))


def public_names(name: str) -> Iterator[Entry]:
    """What the module calls public: its `__all__`, what it or a module below it defines, and what PyTorch's
    module of that name has."""
    holder = load(name)
    if inspect.isclass(holder):
        yield from sorted(public_members(full(name), holder), key=lambda entry: entry.path.lower())
        return
    listed = {
        *getattr(holder, "__all__", ()),
        *torch_names().get("torch" + full(name).removeprefix(ROOT), ()),
    }
    for each in sorted({*listed, *dir(holder)}, key=str.lower):
        value = getattr(holder, each, None)
        home = home_of(value)
        own = each in listed or name == ROOT or home.startswith(full(name)) or is_op(value)
        if each[0] != "_" and is_described(value) and home.startswith(ROOT) and own:
            yield Entry(f"{full(name)}.{each}", holder, value)


def is_op(value: Any) -> bool:
    return hasattr(value, "_declarations")


def public_members(path: str, cls: type) -> Iterator[Entry]:
    """Public methods and properties that a class, or a private base of it, defines in this tree."""
    seen = set()
    for base in cls.__mro__:
        private = base.__name__.startswith("_") or (cls.__name__, base.__name__) == ("Tensor", "TensorBase")
        if not base.__module__.startswith(ROOT) or (base is not cls and not private):
            continue
        for each in vars(base):
            value = inspect.getattr_static(cls, each)
            if each[0] != "_" and each not in seen and is_member(value):
                seen.add(each)
                yield Entry(f"{path}.{each}", cls, value)


def is_member(value: Any) -> bool:
    """Whether it is a method or a property; fields of named tuples are named by the tuple's docstring."""
    if inspect.isclass(value) or isinstance(value, enum.Enum | ModuleType | MemberDescriptorType | FIELD):
        return False
    return isinstance(value, cached_property) or callable(value) or inspect.isdatadescriptor(value)


def docstring(entry: Entry) -> str:
    """What help() says: a method without a docstring has that of the method that it overrides, a class has
    none where Python made one of its fields."""
    value = entry.value.func if isinstance(entry.value, cached_property) else entry.value
    if inspect.isclass(value):
        text = inspect.cleandoc(value.__dict__.get("__doc__") or "")
        made = is_dataclass(value) or issubclass(value, tuple)
        return "" if made and re.fullmatch(rf"{value.__name__}\(.*\)[^\n]*", text) else text
    name = entry.path.rpartition(".")[2]
    bases = entry.holder.__mro__ if inspect.isclass(entry.holder) else ()
    found = map(own_text, [value, *(vars(base)[name] for base in bases if name in vars(base))])
    return next((text for text in found if text), "")


def own_text(value: Any) -> str:
    """The docstring, unless Python's own type of the value, or of what a property calls, has lent it."""
    value = value.func if isinstance(value, cached_property) else value
    text = inspect.getdoc(value) or ""
    if not split_signature(getattr(value, "__name__", ""), text)[1]:
        return ""
    types = (type(value), type(getattr(value, "fget", None)))
    return "" if text in [inspect.getdoc(each) for each in types if home_of(each)[:8] != ROOT] else text


def split_signature(name: str, text: str) -> tuple[str, str]:
    """The lines with which an op's docstring begins, its overloads, and the rest."""
    head, _, rest = text.partition("\n\n")
    return (head, rest.strip()) if head.startswith(f"{name}(") else ("", text)


# ---- from a docstring to markdown ------------------------------------------------------------------------


class _Bare(str):
    """An annotation that is text already."""

    def __repr__(self) -> str:
        return str(self)


def signature(value: Any, member: bool) -> str:
    """The parameters as they are written, without self; empty where there are none to be known."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [
        p.replace(annotation=_Bare(p.annotation)) if isinstance(p.annotation, str) else p
        for p in found.parameters.values()
    ]
    bare = bare[1:] if member and bare and bare[0].name == "self" else bare
    returns: Any = inspect.Signature.empty if inspect.isclass(value) else found.return_annotation
    returns = _Bare(returns) if isinstance(returns, str) else returns
    found = found.replace(parameters=bare, return_annotation=returns)
    text = str(found) if len(str(found)) < 80 else by_lines(found)
    text = re.sub(r"<(?:function |class |built-in function )?'?([\w.]+)[^>]*>", r"\1", text)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def by_lines(found: inspect.Signature) -> str:
    """A signature with a line for each parameter."""
    lines = str(found.replace(return_annotation=found.empty)), str(found)
    kinds: list[Any] = []
    out: list[str] = []
    for each in found.parameters.values():
        if each.kind == each.KEYWORD_ONLY and not {each.VAR_POSITIONAL, each.KEYWORD_ONLY} & set(kinds):
            out.append("*")
        if kinds and kinds[-1] == each.POSITIONAL_ONLY != each.kind:
            out.append("/")
        kinds.append(each.kind)
        out.append(str(each))
    return "(\n" + "".join(f"    {each},\n" for each in out) + ")" + lines[1].removeprefix(lines[0])


def escape(text: str) -> str:
    """Plain text for markdown; what stands between backquotes stays, without Sphinx's roles before it."""
    parts = re.split(r"(`+[^`]+`+)", re.sub(r":\w+:`", "`", text))
    parts[::2] = [re.sub(r"([\\*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def fenced(text: str) -> str:
    return f"```python\n{textwrap.dedent(text).strip()}\n```"


def arguments(text: str) -> str:
    """`name: what it is`, indented, as a list."""
    items: list[str] = []
    for line in textwrap.dedent(text).splitlines():
        name, colon, rest = line.partition(":")
        if (line[:1].isspace() and items) or not colon or " " in name.replace(", ", ","):
            items[-1:] = [f"{''.join(items[-1:])} {escape(line.strip())}"]
        else:
            items.append(f"- `{name}`:{escape(rest)}")
    return "\n".join(item.strip() for item in items)


def markdown(text: str) -> str:
    """The docstring's paragraphs, arguments and examples."""
    out = []
    section = re.compile(r"^(Args|Arguments|Attributes|Raises|Returns|Yields):\s*$", re.M)
    for block in re.split(r"\n\s*\n", text):
        if ">>>" in block or (block[:4].isspace() and out and out[-1].endswith("::")):
            if out and out[-1].endswith("::"):
                out[-1] = out[-1][:-1]
            before, prompt, code = textwrap.dedent(block).partition(">>>")
            out += [escape(before.strip()), fenced(prompt + code)]
            continue
        head = section.search(block)
        if not head:
            out.append(escape(block))
            continue
        out += [
            escape(block[: head.start()].strip()),
            f"**{head[1]}**",
            arguments(block[head.end() :].strip("\n")),
        ]
    return "\n\n".join(part for part in out if part)


# ---- pages -----------------------------------------------------------------------------------------------


class Owners:
    """The page that describes a thing, by identity: that of its home, or the first that has it."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[int, str, Any]] = {}  # the thing, too, so that no other takes its id
        for name in MODULES:
            for entry in public_names(name):
                near = len(full(name)) if home_of(entry.value).startswith(full(name)) else 0
                if near > self.found.get(id(entry.value), (-1, ""))[0]:
                    self.found[id(entry.value)] = near, name, entry.value

    def of(self, entry: Entry, name: str) -> str:
        """That page; `name`, which has the entry, for what is made anew each time."""
        return self.found.get(id(entry.value), (0, name))[1]


def described(entry: Entry) -> str:
    """Heading, signature and text of a name; of a method, below its class."""
    owner, _, name = entry.path.rpartition(".")
    value = entry.value.func if isinstance(entry.value, cached_property) else entry.value
    member = inspect.isclass(entry.holder)
    calls, text = split_signature(name, docstring(entry))
    if not calls:
        plain = inspect.isdatadescriptor(value) or isinstance(entry.value, cached_property)
        kind = "class " if inspect.isclass(value) else ""
        calls = (
            name
            if plain
            else f"{kind}{name}{signature(getattr(entry.holder, name) if member else value, member)}"
        )
    title = f"### {owner.rpartition('.')[2]}.{name}" if member else f"## {name}"
    return f"{title} {{ #{entry.path} }}\n\n{fenced(calls)}\n\n{markdown(text)}"


def page(name: str, owners: Owners) -> str:
    """The page of a module."""
    parts = [f"# {full(name)}", markdown(inspect.getdoc(load(name)) or "")]
    elsewhere = []
    for entry in public_names(name):
        home = owners.of(entry, name)
        short = entry.path.rpartition(".")[2]
        if home != name:
            elsewhere.append(f"[`{short}`]({home}.md)")
            continue
        parts.append(described(entry))
        if inspect.isclass(entry.value):
            members = public_members(entry.path, entry.value)  # of those that say nothing the base does
            parts += [described(each) for each in members if getattr(each.value, "__doc__", None)]
    if elsewhere:
        parts += ["## Described elsewhere", ", ".join(elsewhere)]
    return "\n\n".join(parts) + "\n"


def summary(name: str) -> str:
    """The first paragraph of a module's docstring, as one line of a table."""
    first = (inspect.getdoc(load(name)) or "").partition("\n\n")[0]
    return escape(" ".join(first.split())).replace("|", "\\|")


def index() -> str:
    """The page that lists the others."""
    parts = ["# API", "Every public name, from its docstring."]
    for group, names in GROUPS.items():
        rows = [f"| [{full(name)}]({name}.md) | {summary(name)} |" for name in names.split()]
        parts.append("\n".join([f"## {group}\n", "| module | what it has |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def on_config(config: Any) -> Any:
    """Of mkdocs: the pages' places in the navigation."""
    groups = [{group: [f"api/{name}.md" for name in names.split()]} for group, names in GROUPS.items()]
    config.nav.append({"API": ["api/index.md", *groups]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Of mkdocs: the pages."""
    from mkdocs.structure.files import File

    owners = Owners()
    texts = {name: page(name, owners) for name in MODULES} | {"index": index()}
    for name, text in texts.items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Of mkdocs: links to files of the tree, which lie outside of the site, become their names."""
    out = re.escape("../" * (page.file.src_uri.count("/") + 1))
    return re.sub(rf"\[([^\]]+)\]\({out}[^)]*\)", r"\1", text)
