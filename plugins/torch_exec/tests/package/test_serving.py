"""The example server: requests by name, and refusals with a reason."""

from __future__ import annotations

import json
import runpy
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import tj_core as tj
import torch

SERVE = Path(__file__).parents[4] / "examples" / "serving" / "serve.py"


def scaled(x: torch.Tensor, *, scale: float) -> dict[str, torch.Tensor]:
    return {"y": x.relu() * scale}


def test_a_package_is_served() -> None:
    package = tj.export(scaled, (torch.ones(1, 4),), keywords={"scale": 2.0}, plugins=["torch"])
    served: Any = runpy.run_path(str(SERVE))["server"](package, port=0)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    address = f"http://localhost:{served.server_address[1]}"

    def ask(content: Any) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(address, json.dumps(content).encode()) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    try:
        given = [[1.0, -2.0, 3.0, 0.5]]
        assert ask({"x": given, "scale": 2.0}) == (200, {"y": [[2.0, 0.0, 6.0, 1.0]]})
        status, answer = ask({"x": given, "scale": 3.0})
        assert (status, answer["error"]) == (400, "scale: expected 2.0, got 3.0")
        assert ask([1])[0] == 400
    finally:
        served.shutdown()
        served.server_close()
