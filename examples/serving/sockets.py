"""A model behind a plain socket: requests with ever new batch sizes, in eager and by tj.

    python sockets.py                      # both, one after the other, with a client of its own
    python sockets.py --requests 2000 --rate 50
    python sockets.py --prepare            # the compiler and one program are there at the start

A request is the number of rows and their numbers as float32, a response the same. The client is a
process of its own, sends a request each 1/rate seconds and prints the times that answers took. With
``on_miss="eager"`` no request waits for a compilation: new shapes are answered in eager, and the
programs take over when they are there.
"""

from __future__ import annotations

import argparse
import random
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import tj_core as tj
import torch

WIDTH = 256
HEADER = struct.Struct("!I")


def model() -> torch.nn.Module:
    """The model: eight linear layers."""
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    return torch.nn.Sequential(*layers, torch.nn.LayerNorm(WIDTH)).eval()


def received(connection: socket.socket, size: int) -> bytearray:
    """The next ``size`` bytes; empty if the other side has closed."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return bytearray()
        data += part
    return data


def rows_of(connection: socket.socket) -> torch.Tensor | None:
    """The next message; None if there is none."""
    header = received(connection, HEADER.size)
    if not header:
        return None
    (rows,) = HEADER.unpack(header)
    data = received(connection, rows * WIDTH * 4)
    return torch.frombuffer(data, dtype=torch.float32).view(rows, WIDTH)


def send(connection: socket.socket, rows: torch.Tensor) -> None:
    """Send ``rows`` as one message."""
    connection.sendall(HEADER.pack(len(rows)) + rows.contiguous().numpy().tobytes())


def server(f: Any) -> socketserver.ThreadingTCPServer:
    """A server on a free port that answers each message by ``f`` of it."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with torch.inference_mode():
                while (rows := rows_of(self.request)) is not None:
                    send(self.request, f(rows))

    made = socketserver.ThreadingTCPServer(("localhost", 0), Handler)
    made.daemon_threads = True
    return made


def ask(port: int, requests: int, rate: float) -> list[float]:
    """Seconds that each of the requests took; batch sizes are random."""
    numbers, seconds = random.Random(0), []
    with socket.create_connection(("localhost", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(requests):
            rows = torch.rand(numbers.randint(1, 200), WIDTH)
            began = time.perf_counter()
            send(connection, rows)
            answer = rows_of(connection)
            seconds.append(time.perf_counter() - began)
            assert answer is not None
            assert answer.shape == rows.shape
            time.sleep(max(0.0, 1 / rate - seconds[-1]))
    return seconds


def line(name: str, seconds: list[float]) -> str:
    """One row of the table: the median, the 99th percentile and the maximum."""
    ordered = [1000 * s for s in sorted(seconds)]
    middle, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"{name:30} p50 {middle:7.2f} ms   p99 {high:7.2f} ms   most {ordered[-1]:7.2f} ms"


def served(f: Any, requests: int, rate: float) -> list[float]:
    """The client's times with a server of ``f``; the client is a process of its own."""
    with server(f) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        asked = [sys.executable, __file__, "--client", str(made.server_address[1])]
        asked += ["--requests", str(requests), "--rate", str(rate)]
        found = subprocess.run(asked, capture_output=True, text=True, check=True)
        made.shutdown()
    return [float(word) for word in found.stdout.split()]


def main() -> None:
    """Serve in eager, then by tj, and print the times; or be the client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0, help="requests in a second")
    parser.add_argument("--prepare", action="store_true", help="compile for one batch before")
    parser.add_argument("--client", type=int, help="the port of the server")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.client:
        print(*ask(arguments.client, arguments.requests, arguments.rate))
        return
    jitted = tj.jit(model(), on_miss="eager")
    if arguments.prepare:
        with torch.inference_mode():
            jitted.compile_for(torch.rand(100, WIDTH))
    for name, f in {"eager": model(), 'tj, on_miss="eager"': jitted}.items():
        print(line(name, served(f, arguments.requests, arguments.rate)), flush=True)
    stats = tj.stats(jitted)
    print(f"{stats.eager} calls in eager, {stats.hits} by {stats.entries} programs")


if __name__ == "__main__":
    main()
