"""Settings of a compiler that is not here: they can be set and read, and have no effect."""

cache_size_limit = recompile_limit = 8
accumulated_cache_size_limit = 256
suppress_errors = verbose = capture_scalar_outputs = capture_dynamic_output_shape_ops = False
skip_fwd_side_effects_in_bwd_under_checkpoint = False
automatic_dynamic_shapes = assume_static_by_default = True
optimize_ddp: bool | str = True
