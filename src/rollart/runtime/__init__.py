"""The live driver: controller, proxies, environment managers, buffer, hosts."""
