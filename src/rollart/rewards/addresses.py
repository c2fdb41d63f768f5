"""Addresses that secrets may be sent to: encrypted ones, and this machine's own."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def may_carry_secrets(url: str) -> bool:
    """Say whether what is sent to a URL is hidden on its way, or never leaves this machine."""
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
