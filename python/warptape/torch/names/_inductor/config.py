"""Settings of a compiler that is not here: they can be set and read, and have no effect."""

from types import SimpleNamespace as _Settings

triton = _Settings(cudagraphs=False, unique_kernel_names=True, cudagraph_trees=True, multi_kernel=0)
cpp, cuda = _Settings(threads=-1, enable_concat_linear=False), _Settings()
coordinate_descent_tuning = max_autotune = epilogue_fusion = fx_graph_cache = conv_1x1_as_mm = False
shape_padding = force_fuse_int_mm_with_mul = use_mixed_mm = False
compile_threads = 1
