"""The named tuples that ops return: `torch.return_types.max` has `values` and `indices`."""

from ... import _C

globals().update({name: kind for name, kind in vars(_C._return_types).items() if not name.startswith("_")})
