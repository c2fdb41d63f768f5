"""Engines that complete requests, and the driver that owns one."""
