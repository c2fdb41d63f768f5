"""FsspecBlobs: bytes as files of anything fsspec can reach: object stores, ssh, a local path.

The location is an fsspec URL such as `s3://bucket/run` or `sftp://host/dir`. On file systems that
do not make a file visible atomically (a local path, ssh), it is written under a temporary name and
moved, so a reader never sees part of one.
"""

import contextlib
import secrets

import fsspec

from rollart.errors import StorageError
from rollart.weights.blobs.files import check_key

_ATOMIC = ("memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "oss", "http", "https")
"""Protocols that make a file visible only when it is complete."""


class FsspecBlobs:
    """Stores every value as a file under an fsspec URL."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self._url)
            self._files.makedirs(self._root, exist_ok=True)
        except ImportError as error:
            raise StorageError(f"fsspec cannot open {url}: {error}") from error
        except ValueError as error:
            raise StorageError(
                f"fsspec cannot open {url}: {error}; use for example file://, s3://, gs://, "
                "abfs:// or sftp:// (all: fsspec.available_protocols())"
            ) from error
        except OSError as error:
            raise StorageError(f"cannot use {url} for weights: {error}") from error
        protocol = self._files.protocol
        names = (protocol,) if isinstance(protocol, str) else tuple(protocol)
        self._is_atomic = any(name in _ATOMIC for name in names)

    @property
    def place(self) -> str:
        """The URL, for messages."""
        return self._url

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, replacing the old value."""
        path = f"{self._root}/{check_key(key)}"
        target = path if self._is_atomic else f"{path}.{secrets.token_hex(4)}.part"
        try:
            with self._files.open(target, "wb") as file:
                file.write(data)
            if target != path:
                self._files.mv(target, path)
        except OSError as error:
            if target != path:
                with contextlib.suppress(OSError):
                    self._files.rm_file(target)
            raise StorageError(
                f"cannot write {len(data)} bytes of weights to {self._url}: {error}; "
                "free space there or choose another location"
            ) from error

    def get(self, key: str) -> bytes | memoryview:
        """Return the bytes under a key; raise KeyError if there are none."""
        path = f"{self._root}/{check_key(key)}"
        try:
            return self._files.cat_file(path)
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError as error:
            raise StorageError(f"cannot read {path} at {self._url}: {error}") from error

    def delete(self, key: str) -> None:
        """Remove a key, if it exists."""
        try:
            self._files.rm_file(f"{self._root}/{check_key(key)}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot delete {key} at {self._url}: {error}") from error

    def close(self) -> None:
        """Do nothing: connections belong to fsspec."""
