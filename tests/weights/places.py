"""The places buckets are kept in, each as the tests reach it."""

PLACES = ["files", "files_delta", "fsspec_memory", "fsspec_local"]
BUCKET_BYTES = 256
