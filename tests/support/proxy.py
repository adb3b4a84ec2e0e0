"""A proxy between client and server that loses replies: what was asked for has then happened, unseen.

Or requests: then it has not, and the connection is reset, as by a server killed before it read them.
"""

from __future__ import annotations

import itertools
import random
import select
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

#: bytes read at once: more than any request or reply of the tests
CHUNK = 1 << 20
#: seconds between two checks whether to stop
POLL_INTERVAL = 0.05


class LossyProxy:
    """Listens on a unix socket, forwards to the server's, and loses requests or replies on demand.

    Only replies to requests that contain `asking` are lost: the driver's handshake passes.
    """

    def __init__(self, target: Path, *, asking: bytes = b"EVAL") -> None:
        self._target = str(target)
        #: what the requests contain whose replies are lost
        self.asking = asking
        self._directory = tempfile.TemporaryDirectory(prefix="proxy-")
        self._path = f"{self._directory.name}/proxy.sock"
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lose: Callable[[], bool] = lambda: False
        self._hang_up = True
        self._then: Callable[[], object] | None = None
        self._resets = 0
        #: number of forwarded requests
        self.asked = 0
        #: number of lost replies
        self.lost = 0

    @property
    def url(self) -> str:
        """The LOCATION of a CACHES entry."""
        return f"unix://{self._path}?db=0"

    def lose_next(
        self, replies: int = 1, *, hang_up: bool = True, then: Callable[[], object] | None = None
    ) -> None:
        """Lose this many replies from now on; `hang_up`: and close the connection, else stay silent. `then`
        is called when one is lost, before the client can notice."""
        self._then = then
        last = self.lost + replies
        self._hang_up = hang_up
        self._lose = lambda: self.lost < last

    def lose_one_after(self, replies: int) -> None:
        """Lose one reply, after this many have passed."""
        passed = itertools.count()
        self._hang_up = True
        self._lose = lambda: next(passed) == replies

    def lose_some(self, share: float, *, seed: int = 0, hang_up: bool = True) -> None:
        """Lose this share of the replies, at random."""
        chance = random.Random(seed)
        self._hang_up = hang_up
        self._lose = lambda: chance.random() < share

    def reset_next(self, requests: int = 1) -> None:
        """Don't read this many requests: a connection closed with something unread is reset."""
        self._resets = requests

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        self._directory.cleanup()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            if select.select([self._listener], [], [], POLL_INTERVAL)[0]:
                client, _ = self._listener.accept()
                self._start(lambda client=client: self._serve(client))  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._target)
                while not self._stopping.is_set() and self._forward(client, server):
                    pass
            except OSError:
                return

    def _forward(self, client: socket.socket, server: socket.socket) -> bool:
        """One request and its replies; False: the conversation is over."""
        if not select.select([client, server], [], [], POLL_INTERVAL)[0]:
            return True
        if select.select([client], [], [], 0)[0]:
            if self._resets and self.asking in client.recv(CHUNK, socket.MSG_PEEK):
                self._resets -= 1
                return False
            request = client.recv(CHUNK)
            if not request:
                return False
            self.asked += self.asking in request
            server.sendall(request)
            return self._answer(client, server, losable=self.asking in request)
        reply = server.recv(CHUNK)
        client.sendall(reply)
        return bool(reply)

    def _answer(self, client: socket.socket, server: socket.socket, *, losable: bool) -> bool:
        while not select.select([server, client], [], [], POLL_INTERVAL)[0]:
            if self._stopping.is_set():
                return False
        if client in select.select([client], [], [], 0)[0]:
            return True
        reply = server.recv(CHUNK)
        if losable and reply and self._lose():
            self.lost += 1
            if self._then is not None:
                self._then()
            return not self._hang_up
        client.sendall(reply)
        return bool(reply)
