"""A network between client and server with faults: resets, silence, delays, truncated replies."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

#: bytes read at once
CHUNK = 1 << 20
#: seconds between two polls of the state
POLL_INTERVAL = 0.02
#: makes `close` send a reset
RESET = struct.pack("ii", 1, 0)


class Line:
    """One connection from the client to the server."""

    def __init__(self, network: Network, client: socket.socket) -> None:
        self._network = network
        self._client = client
        self._server = socket.socket(socket.AF_UNIX)
        #: the socket of the server
        self.connected_to = network.target
        #: whether all data is discarded, in both directions
        self.silent = False
        self.cut = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._server.connect(self.connected_to)
            while not self.cut and not self._network.closing:
                readable, _, _ = select.select([self._client, self._server], [], [], POLL_INTERVAL)
                if self._client in readable and not self._pass_request():
                    break
                if self._server in readable and not self._pass_reply():
                    break
            if self.cut:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError:
            pass  # one end has closed the connection
        finally:
            self._client.close()
            self._server.close()

    def _pass_request(self) -> bool:
        data = self._client.recv(CHUNK)
        if not self.silent:
            self._server.sendall(data)
        return bool(data)

    def _pass_reply(self) -> bool:
        data = self._server.recv(CHUNK)
        if self.silent:
            return bool(data)
        network = self._network
        if network.trickle:
            for at in range(len(data)):
                if self.cut or network.closing:
                    return False
                time.sleep(network.trickle)
                self._client.sendall(data[at : at + 1])
        elif network.halves and network.marker in data:
            network.halves -= 1
            self._client.sendall(data[: len(data) // 2])
            self.silent = True
        else:
            self._client.sendall(data)
        return bool(data)


class Network:
    """Listens on a TCP port and forwards to a server's unix socket."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)
        self.closing = False
        #: seconds that each byte of a reply takes
        self.trickle = 0.0
        #: number of replies to truncate, and what they contain
        self.halves = 0
        self.marker = b""
        #: number of connections made so far
        self.lines: list[Line] = []

    @property
    def url(self) -> str:
        """The LOCATION of a CACHES entry."""
        return f"redis://127.0.0.1:{self.port}/0?db=0"

    def reset(self) -> None:
        """Reset all current connections."""
        lines = [line for line in self.lines if line.thread.is_alive()]
        for line in lines:
            line.cut = True
        for line in lines:
            line.thread.join(10)

    def blackhole(self) -> None:
        """Discard all data of the current connections, as a router that has dropped their state."""
        for line in self.lines:
            line.silent = True

    def halve_next(self, marker: bytes = b"") -> None:
        """Truncate the next reply that contains this, and discard all data after it."""
        self.marker, self.halves = marker, 1

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing = True
        for thread in (self._thread, *(line.thread for line in self.lines)):
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self.closing:
            if select.select([self._listener], [], [], POLL_INTERVAL)[0]:
                with contextlib.suppress(OSError):
                    self.lines.append(Line(self, self._listener.accept()[0]))
