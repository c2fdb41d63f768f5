#!/usr/bin/env bash
# Installs, trains, and says where the time went. Arguments: make, the venv's bin, the config.
set -euo pipefail

make=$1 bin=$2 config=$3

if [ "$config" = examples/quickstart.toml ]; then
    echo "this takes 2 to 8 minutes on two cores, a minute when all is installed and cached"
fi
start=$(date +%s)
"$make" --no-print-directory install
installed=$(date +%s)
"$bin/rollart" train "$config"
trained=$(date +%s)

"$bin/python" scripts/show_times.py "$config" $((installed - start)) $((trained - installed))
