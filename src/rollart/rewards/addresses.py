"""Which URLs secrets may be sent to: https, and this machine itself."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def may_carry_secrets(url: str) -> bool:
    """Return whether data sent to a URL is encrypted or never leaves this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https" or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
