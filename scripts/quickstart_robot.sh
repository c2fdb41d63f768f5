#!/usr/bin/env bash
# Installs, records an expert, imitates it and films the policy. Arguments: make, the venv's bin.
set -euo pipefail

make=$1 bin=$2
task=reach name=quickstart_robot
run=runs/$name

echo "this takes 3 to 6 minutes on two cores, 2 when all is installed"
start=$(date +%s)
"$make" --no-print-directory install-robot
scripts/debian_packages.sh film
installed=$(date +%s)
"$bin/rollart" robot demos "$task" --episodes 10
recorded=$(date +%s)
"$bin/rollart" train examples/robot_imitation.toml run.name=$name run.steps=2000 \
    run.evaluate_every=1000 run.checkpoint_every=0 policy.demonstrations="demos/$task.npz" \
    tasks.robot.options.task="$task" tasks.robot.max_turns=67
trained=$(date +%s)
# Without EGL there is no picture, but the policy still plays.
"$bin/rollart" robot play "$run" --task "$task" --save "$run/play.gif" --sheet "$run/play.png" ||
    "$bin/rollart" robot play "$run" --task "$task"
played=$(date +%s)

echo
echo "where the time went"
printf '  %-16s%6d s\n' installation $((installed - start)) demonstrations $((recorded - installed)) \
    imitation $((trained - recorded)) film $((played - trained)) "in all" $((played - start))
echo
echo "curve           $run/learning_curve.png"
if [ -e "$run/play.gif" ]; then echo "film            $run/play.gif"; fi
