"""torch._higher_order_ops: control flow whose branches and bodies are functions of tensors.

They run as the Python that they stand for, on the tape as all else. All calls of one go through its entry,
which takes flat operands: `cond_op`, `while_loop_op`, `scan_op`, `associative_scan_op`, `map_impl`.
"""

from .associative_scan import associative_scan
from .cond import cond
from .map import map
from .scan import scan
from .while_loop import while_loop
