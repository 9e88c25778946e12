"""What one looks at a program and an installation with: profiler, pictures of graphs, what is installed."""
