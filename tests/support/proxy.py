"""A proxy between client and server that loses replies: what was asked for has then happened, unseen.

Or requests: then it has not, and the connection is reset, as by a server killed before it read them. Or it is
silent, delays each byte, or truncates a reply.
"""

from __future__ import annotations

import itertools
import random
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

#: bytes read at once: more than any request or reply of the tests
CHUNK = 1 << 20
#: seconds between two polls of the state
POLL_INTERVAL = 0.02
#: makes `close` send a reset
RESET = struct.pack("ii", 1, 0)


class LossyProxy:
    """Listens on a unix socket, forwards to the server's, and has faults on demand.

    Only replies to requests that contain `asking` are lost: the driver's handshake passes.
    """

    def __init__(self, target: Path, *, asking: bytes = b"EVAL") -> None:
        self.target = str(target)
        #: what the requests contain whose replies are lost
        self.asking = asking
        #: number of forwarded requests, and of lost replies
        self.asked = self.lost = 0
        #: seconds that each byte of a reply takes
        self.trickle = 0.0
        #: the connections made so far
        self.lines: list[Line] = []
        self.closing = False
        self._directory = tempfile.TemporaryDirectory(prefix="proxy-")
        self._path = f"{self._directory.name}/proxy.sock"
        self._lose: Callable[[], bool] = lambda: False
        self.hangs_up = True
        self._then: Callable[[], object] = lambda: None
        self._resets = 0
        #: number of replies to truncate, and what they contain
        self._halves, self._marker = 0, b""

    @property
    def url(self) -> str:
        """The LOCATION of a CACHES entry."""
        return f"unix://{self._path}?db=0"

    def lose_next(
        self, replies: int = 1, *, hang_up: bool = True, then: Callable[[], object] = lambda: None
    ) -> None:
        """Lose this many replies from now on; `hang_up`: and close the connection, else stay silent. `then`
        is called when one is lost, before the client can notice."""
        last = self.lost + replies
        self._lose, self.hangs_up, self._then = lambda: self.lost < last, hang_up, then

    def lose_one_after(self, replies: int) -> None:
        """Lose one reply, after this many have passed."""
        passed = itertools.count()
        self._lose, self.hangs_up = lambda: next(passed) == replies, True

    def lose_some(self, share: float) -> None:
        """Lose this share of the replies, at random."""
        chance = random.Random(0)
        self._lose, self.hangs_up = lambda: chance.random() < share, True

    def reset_next(self, requests: int = 1) -> None:
        """Don't read this many requests: a connection closed with something unread is reset."""
        self._resets = requests

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
        self._halves, self._marker = 1, marker

    def resets(self, client: socket.socket) -> bool:
        """Whether the request that can be read is not."""
        if self._resets and self.asking in client.recv(CHUNK, socket.MSG_PEEK):
            self._resets -= 1
            return True
        return False

    def loses(self) -> bool:
        """Whether a reply is lost."""
        if self._lose():
            self.lost += 1
            self._then()
            return True
        return False

    def halves(self, reply: bytes) -> bool:
        """Whether a reply is truncated."""
        if self._halves and self._marker in reply:
            self._halves -= 1
            return True
        return False

    def __enter__(self) -> Self:
        self._listener = self._listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing = True
        for thread in (self._thread, *(line.thread for line in self.lines)):
            thread.join(10)
        self._listener.close()
        self._directory.cleanup()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        return listener

    def _accept(self) -> None:
        while not self.closing:
            if select.select([self._listener], [], [], POLL_INTERVAL)[0]:
                with suppress(OSError):
                    line = Line(self, self._listener.accept()[0])
                    self.lines.append(line)  # before a reply can arrive: tests count them
                    line.thread.start()


class Network(LossyProxy):
    """The same on a TCP port."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?db=0"

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        return listener


class Line:
    """One connection from the client to the server."""

    def __init__(self, proxy: LossyProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = socket.socket(socket.AF_UNIX)
        #: the socket of the server
        self.connected_to = proxy.target
        #: whether all data is discarded, in both directions
        self.silent = False
        self.cut = False
        #: whether the next reply may be lost
        self._is_losable = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._server.connect(self.connected_to)
            while not self.cut and not self._proxy.closing:
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
        """Whether the connection remains."""
        proxy = self._proxy
        if proxy.resets(self._client):
            return False
        data = self._client.recv(CHUNK)
        self._is_losable = proxy.asking in data
        proxy.asked += self._is_losable
        if not self.silent:
            self._server.sendall(data)
        return bool(data)

    def _pass_reply(self) -> bool:
        """Whether the connection remains."""
        proxy, data, is_losable = self._proxy, self._server.recv(CHUNK), self._is_losable
        self._is_losable = False
        if data and is_losable and proxy.loses():
            return not proxy.hangs_up
        if self.silent:
            return bool(data)
        if proxy.trickle:
            for at in range(len(data)):
                if self.cut or proxy.closing:
                    return False
                time.sleep(proxy.trickle)
                self._client.sendall(data[at : at + 1])
        elif proxy.halves(data):
            self._client.sendall(data[: len(data) // 2])
            self.silent = True
        else:
            self._client.sendall(data)
        return bool(data)
