#!/usr/bin/env bash
# Install the Debian packages that are missing. Never fails: prints one line if some stay missing.
#   debian_packages.sh test   what some tests need and are skipped without (the default)
#   debian_packages.sh film   what films of robots need
#   debian_packages.sh venv   what `python3 -m venv` needs
set -uo pipefail

case "${1:-test}" in
test)
  # bubblewrap and a Python that every user can read: the sandbox. iproute2: weights over links.
  # libegl1, libgl1, libgl1-mesa-dri: pictures of robots. strace: the benchmark of durability. The
  # other libraries: Mooncake.
  wanted=(bubblewrap iproute2 libcurl4 libegl1 libgl1 libgl1-mesa-dri libgoogle-glog0v6 libibverbs1
    libjsoncpp25 libnuma1 librdmacm1 libunwind8 liburing2 linux-libc-dev python3 strace)
  others="bubblewrap, iproute2, EGL and the libraries of Mooncake"
  effect="some tests are skipped"
  ;;
film)
  wanted=(libegl1 libgl1 libgl1-mesa-dri)
  others="EGL"
  effect="robots are not filmed"
  ;;
venv)
  wanted=(python3-venv)
  others="Python's venv and ensurepip"
  effect="no virtual environment can be made"
  ;;
*)
  echo "usage: $0 [test|film|venv]" >&2
  exit 2
  ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "this is not Debian: install $others yourself, without them $effect" >&2
  exit 0
fi

find_missing() {
  missing=()
  for package in "${wanted[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
}

install() { timeout 240 apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1; }

find_missing
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ]; then
  echo "installing Debian packages: ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  timeout 120 apt-get update -qq >/dev/null 2>&1
  if ! install "${missing[@]}"; then
    # One name that this release does not have fails all: install the others.
    for package in "${missing[@]}"; do install "$package"; done
  fi
  find_missing
  [ ${#missing[@]} -eq 0 ] && exit 0
fi
echo "Debian packages are missing, so $effect: sudo apt-get install ${missing[*]}" >&2
