"""PyTorch's own samples (op_db, module_db, optim_db) run in both libraries, and what differs.

filters.py says which entries are left out, ops.py, modules.py and optimizers.py hold the comparisons,
expected_failures.txt what is known to differ. `python tools/parity.py NAME ...` runs them by hand.
"""
