#!/usr/bin/env bash
# Debian's packages without which some tests are skipped; installs those that are missing.
# The sandbox wants bubblewrap and a Python any user may read, Mooncake its libraries, weights over
# links network namespaces. Where it cannot install, it says so: the tests say what they skip.
set -uo pipefail
wanted=(bubblewrap iproute2 libcurl4 libgoogle-glog0v6 libibverbs1 libjsoncpp25 libnuma1
  librdmacm1 libunwind8 liburing2 linux-libc-dev python3)
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
export DEBIAN_FRONTEND=noninteractive
install() { timeout 120 apt-get update -qq && timeout 240 apt-get install -qq -y --no-install-recommends "${missing[@]}"; }
install >/dev/null || echo "not installed, so that some tests are skipped: ${missing[*]}" >&2
