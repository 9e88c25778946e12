"""torch.export: a module as a graph of ops, for a range of input sizes, that runs without its Python code."""

from .._missing import install_getattr as _install_getattr
from . import passes
from ._dims import Dim, ShapesCollection, dims
from ._exported import ExportedProgram, ExportGraphSignature, export, load, save

__all__ = [
    "Dim",
    "ExportGraphSignature",
    "ExportedProgram",
    "ShapesCollection",
    "dims",
    "export",
    "load",
    "passes",
    "save",
]

_install_getattr(__name__)
