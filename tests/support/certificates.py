"""Certificates for servers on this machine."""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path

from .programs import program

NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


class Authority:
    """A private certificate authority, whose files are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._openssl(
            f"req -x509 {NEW_KEY} -days 2 -subj /CN=authority -addext keyUsage=keyCertSign "
            "-keyout ca.key -out ca.pem"
        )

    @property
    def certificate(self) -> str:
        """The path of its own certificate, which a client must have to trust the servers."""
        return str(self._directory / "ca.pem")

    def server_options(self, address: str = "127.0.0.1") -> dict[str, str]:
        """Options of a server with a new certificate for this IP address. Clients need no certificate."""
        name = f"server{next(self._numbers)}"
        (self._directory / "names").write_text(f"subjectAltName=IP:{address}\nauthorityKeyIdentifier=keyid")
        self._openssl(f"req {NEW_KEY} -subj /CN=server -keyout {name}.key -out {name}.csr")
        self._openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names "
            f"-out {name}.pem"
        )
        return {
            "tls-cert-file": str(self._directory / f"{name}.pem"),
            "tls-key-file": str(self._directory / f"{name}.key"),
            "tls-ca-cert-file": self.certificate,
            "tls-auth-clients": "no",
        }

    def _openssl(self, line: str) -> None:
        subprocess.run(
            [program("openssl"), *line.split()], cwd=self._directory, check=True, capture_output=True
        )
