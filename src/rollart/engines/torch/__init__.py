"""The torch engine: continuous batching, prefix reuse, weight swap; CPU or CUDA by device name."""
