"""The torch engine: continuous batching, prefix reuse, weight updates between two steps."""
