"""Tells every process of a program at once that one of them has failed or is gone.

A process that waits in a collective for another one that has ended would wait for minutes. So each
keeps a connection to process 0, says every few seconds that it is there, and how it ended; when one
fails, or is not heard of, process 0 tells the others, and each ends with that line on stderr.
"""

import os
import socket
import threading
import time

from scripts import console

EVERY_SECONDS = 2.0
LOST_SECONDS = 20.0  # without a word a process is taken for gone
JOIN_SECONDS = 45.0  # for all to come
DONE, ALIVE, FAILED = "done", "alive", "failed"


class Watch:
    """A context: inside it the processes watch each other.

    Entering it waits for all to come: ValueError if they do not, or do not fit together. Leaving it
    by an exception ends all processes; leaving it in order waits for the others' end.
    """

    def __init__(self, index: int, processes: int, address: tuple[str, int]):
        """address: where process 0 listens, known to all."""
        self._index, self._processes, self._address = index, processes, address
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}

    def __enter__(self) -> "Watch":
        connections = self._accept() if self._index == 0 else self._connect()
        self._peers = {number: _Peer(number, link) for number, link in connections.items()}
        for peer in self._peers.values():
            threading.Thread(target=self._listen, args=(peer,), daemon=True).start()
        threading.Thread(target=self._keep_alive, daemon=True).start()
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            for peer in self._peers.values():
                peer.send(DONE)
            for peer in self._peers.values():
                peer.ended.wait(LOST_SECONDS)
            return
        text = "was interrupted" if issubclass(kind, KeyboardInterrupt) else f"failed: {error}"
        self._tell(f"process {self._index} {console.one_line(text)}", but=None)

    def _accept(self) -> dict[int, socket.socket]:
        found: dict[int, socket.socket] = {}
        until = time.monotonic() + JOIN_SECONDS
        with socket.create_server(("", self._address[1])) as server:
            while len(found) < self._processes - 1:
                server.settimeout(max(until - time.monotonic(), 0.01))
                try:
                    link, _ = server.accept()
                    link.settimeout(JOIN_SECONDS)
                    number, processes = map(int, link.makefile().readline().split())
                except TimeoutError:
                    missing = sorted({*range(1, self._processes)} - {*found})
                    raise ValueError(
                        f"{self._where}: process {missing[0]} did not come in {JOIN_SECONDS:.0f} s"
                    ) from None
                except ValueError:
                    continue  # somebody else's connection
                if number in found or number == 0 or processes != self._processes:
                    raise ValueError(
                        f"{self._where}: two processes are number {number}"
                        if processes == self._processes
                        else f"process {number} is one of {processes}, and process 0 of "
                        f"{self._processes}"
                    )
                found[number] = link
        return found

    def _connect(self) -> dict[int, socket.socket]:
        until = time.monotonic() + JOIN_SECONDS
        while True:
            try:
                link = socket.create_connection(self._address, timeout=JOIN_SECONDS)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise ValueError(
                        f"{self._where}: process 0 did not answer in {JOIN_SECONDS:.0f} s: "
                        f"{error.strerror or error}"
                    ) from error
                time.sleep(0.1)
        link.sendall(f"{self._index} {self._processes}\n".encode())
        return {0: link}

    @property
    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _listen(self, peer: "_Peer") -> None:
        for line in peer.lines():
            word, _, text = line.partition(" ")
            if word == DONE:
                peer.ended.set()
            elif word == FAILED:
                self._end(text, but=peer.number)
        if not peer.ended.is_set():
            self._end(f"process {peer.number} is gone", but=peer.number)

    def _keep_alive(self) -> None:
        while True:
            time.sleep(EVERY_SECONDS)
            for peer in self._peers.values():
                peer.send(ALIVE)

    def _tell(self, text: str, but: int | None) -> None:
        for peer in self._peers.values():
            if peer.number != but:
                peer.send(f"{FAILED} {text}")

    def _end(self, text: str, but: int) -> None:
        """End this process, whatever its main thread waits for."""
        with self._lock:
            self._tell(text, but)
            console.fail(f"{text}, so all processes end")
            os._exit(console.FAILED)


class _Peer:
    """The connection to one process."""

    def __init__(self, number: int, link: socket.socket):
        self.number, self.ended = number, threading.Event()
        self._link, self._lock = link, threading.Lock()
        link.settimeout(LOST_SECONDS)

    def send(self, line: str) -> None:
        try:
            with self._lock:
                self._link.sendall(f"{line}\n".encode())
        except OSError:
            pass  # its listener sees that it is gone

    def lines(self):
        """What it says, until it is gone."""
        try:
            with self._link.makefile(encoding="utf-8") as file:
                for line in file:
                    yield line.rstrip("\n")
        except OSError:
            return
