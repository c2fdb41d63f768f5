"""The torch engine: continuous batching, prefix reuse and weight updates between steps."""
