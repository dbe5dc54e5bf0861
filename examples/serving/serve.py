"""Serve a package over HTTP, with Python's own library: no compiler, and no source of the model.

    python serve.py net.tjp --port 8000
    curl -d '{"x": [[1.0, 2.0, 3.0, 4.0]], "scale": 2.0}' http://localhost:8000

The request has the arguments by name: nested lists of numbers are tensors, everything else is a
plain value. What the package refuses is a response with status 400 and the reason. For one user on
one machine: a service for others needs limits, and more than this.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import tj_core as tj
import torch


def given(value: Any) -> Any:
    """The argument for a value in JSON."""
    return torch.tensor(value) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """A result as JSON has it."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [*map(plain, value)] if isinstance(value, tuple | list) else value


def server(package: Any, host: str = "localhost", port: int = 8000) -> ThreadingHTTPServer:
    """A server that answers each POST by a run of ``package``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                arguments = {name: given(value) for name, value in request.items()}
                self.answer(200, plain(package(**arguments)))
            except (tj.TjError, ValueError, TypeError, AttributeError) as error:
                self.answer(400, {"error": str(error)})

        def answer(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return ThreadingHTTPServer((host, port), Handler)


def main() -> None:
    """Load the package that the command line names, and serve it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", help="a file that tj.export(...).save(...) has written")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    package = tj.load(arguments.package)
    print(f"{package} on http://{arguments.host}:{arguments.port}", flush=True)
    server(package, arguments.host, arguments.port).serve_forever()


if __name__ == "__main__":
    main()
