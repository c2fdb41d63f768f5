"""A program for child processes: `python -m child_program WHAT… PARENT_PID`."""

import os
import signal
import subprocess
import sys
import time

from rollart.cluster.child_process import prepare_child


def main() -> None:
    what, *arguments, parent_pid = sys.argv[1:]
    fds = [int(arguments[0])] if what == "descriptors" else []
    prepare_child(int(parent_pid), ignored=(signal.SIGINT,), fds=fds)
    match what:
        case "exit":
            sys.stdout.write("to stdout\n")
            sys.stderr.write("to stderr\n")
            sys.exit(int(arguments[0]))
        case "family":
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            sys.stdout.write(f"{subprocess.Popen(command).pid}\n")
            time.sleep(600)
        case _:
            os.write(fds[0], b"written")
            is_inherited = os.get_inheritable(fds[0])
            sys.stdout.write(f"{os.environ['GREETING']} inherited: {is_inherited}\n")


if __name__ == "__main__":
    main()
