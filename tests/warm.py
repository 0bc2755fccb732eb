"""The program `langchain-cfc`, ready to run: pages call it fifty times, and each start imports for a second.

A process imports all commands once and is forked for each call, with the folder, environment and streams of
the caller. That the program starts on its own, and without what it does not need, is tested elsewhere.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

# What is found by the program's name: it hands the call over, and ends as the call does.
_PROGRAM = """#!{python} -SE
import json, os, signal, socket, sys
call = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(call).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(call)
    if running := int.from_bytes(server.recv(4), "big"):
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(running, number))
    ended = server.recv(1)
sys.exit(ended[0] if ended else "the call was not answered")
"""
# What commands import only when they run.
_LATE = (
    "langchain_openai",
    "matplotlib.backends.backend_svg",
    "pyarrow.parquet",
    "scipy.stats",
    "sqlalchemy",
)


@contextmanager
def warm_program(folder: Path) -> Iterator[Path]:
    """Put the program into a folder and run the process behind it; yield the folder that it is in."""
    address, program = folder / "calls", folder / "bin" / "langchain-cfc"
    program.parent.mkdir()
    program.write_text(_PROGRAM.format(python=sys.executable, address=str(address)), encoding="utf-8")
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        command = [sys.executable, __file__, str(listener.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    with process:  # which closes its standard input at the end, and it ends with that
        yield program.parent


def _take_call(listener: socket.socket) -> None:
    """Fork for each call, and return in the new process, which carries it out; exit when the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for these children
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        call, _ = listener.accept()
        with call:
            if os.fork():
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            size, streams, _, _ = socket.recv_fds(call, 8, 3)
            with call.makefile("rb") as sent:
                arguments, folder, environment = json.loads(sent.read(int.from_bytes(size, "big")))
            running = os.fork()
            if running:
                call.sendall(running.to_bytes(4, "big"))  # what it is told to end by a signal
                code = os.waitstatus_to_exitcode(os.waitpid(running, 0)[1])
                call.sendall(bytes([code if code >= 0 else 128 - code]))
                os._exit(0)
        listener.close()
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        return


def _import_commands() -> Any:
    """Import what calls need, and return what the program runs."""
    sys.path.pop(0)  # the folder of this file; programs have none
    from langchain_cfc.cli import main
    from langchain_cfc.cli.commands import KNOWN_COMMANDS

    own = {
        place.partition(":")[0]
        for known in KNOWN_COMMANDS.values()
        for place, _ in known.values()
        if ":" in place
    }
    added = {point.module for point in entry_points(group="langchain_cfc.commands")}
    for name in (*(f"langchain_cfc.cli.{place}" for place in sorted(own)), *sorted(added), *_LATE):
        importlib.import_module(name)
    gc.freeze()  # what all share is not copied
    return main


if __name__ == "__main__":
    run = _import_commands()
    _take_call(socket.socket(fileno=int(sys.argv[1])))
    run()
