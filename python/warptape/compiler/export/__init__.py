"""torch.export: a module as a graph of ops, for a range of input sizes, that runs without its Python code."""

from . import passes
from .dims import Dim, ShapesCollection, dims
from .exported import ExportedProgram, ExportGraphSignature, export, load, save

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
