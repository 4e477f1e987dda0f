"""Runs a program until it ends or standard input does; run by its path, with the program's command.

The parent holds the other end of standard input, so whatever ends the parent, a kill included, ends
the program and removes the folder that is the first argument. Prints the program's process id.
"""

import shutil
import subprocess
import sys
import threading


def main() -> int:
    """Returns the program's exit status."""
    folder, *command = sys.argv[1:]
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)  # noqa: S603 - our parent's

    ended = threading.Event()

    def end() -> None:
        sys.stdin.buffer.read()
        ended.set()
        program.kill()
        program.wait()
        shutil.rmtree(folder, ignore_errors=True)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    sys.stdout.write(f"{program.pid}\n")
    sys.stdout.flush()
    status = program.wait()
    if ended.is_set():
        ending.join()
    return status


if __name__ == "__main__":
    sys.exit(main())
