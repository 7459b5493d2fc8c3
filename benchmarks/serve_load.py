"""A load test of `jitgrad serve`: requests a second and latencies, with and without batching.

One model (an MLP 64-256-256-10, rows of 64 floats), 1 to 16 clients that each send one row at a
time over a kept connection, on this machine's loopback; each setting runs for a second. Clients
and server share the processors, so figures are of both.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import jitgrad
from jitgrad import nn

SECONDS = 1.0
SETTINGS = [("one by one", []), ("joined, 16 rows", ["--max-batch", "16", "--max-delay-ms", "1"])]


def client(port: int, until: float, body: bytes, headers: dict[str, str], out: list[float]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while time.perf_counter() < until:
        began = time.perf_counter()
        connection.request("POST", "/v2/models/mlp/infer", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}")
        out.append(time.perf_counter() - began)


def main() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                          nn.Linear(256, 10)).eval()  # fmt: skip
    x = np.zeros((1, 64), np.float32)
    about = {"name": "x", "datatype": "FP32", "shape": [1, 64],
             "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    text = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.jgx"
        exported = jitgrad.export(model, jitgrad.rand(2, 64), names=["x"],
                                  dynamic_shapes=[{0: "n"}])  # fmt: skip
        exported.save(path)
        print(f"{'setting':18} {'clients':>8} {'requests/s':>11} {'median ms':>10} {'99 % ms':>9}")
        for label, options in SETTINGS:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            server = subprocess.Popen(
                [sys.executable, "-m", "jitgrad", "serve", str(path), "--port", str(port),
                 "--log-level", "warning", *options]
            )  # fmt: skip
            try:
                wait(port, server)
                for clients in (1, 4, 16):
                    measure(label, port, clients, text + x.tobytes(), headers)
            finally:
                server.terminate()
                server.wait(60)


def wait(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None:
                raise RuntimeError("the server ended") from None
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


def measure(label: str, port: int, clients: int, body: bytes, headers: dict[str, str]) -> None:
    times: list[list[float]] = [[] for _ in range(clients)]
    until = time.perf_counter() + SECONDS
    threads = [
        threading.Thread(target=client, args=(port, until, body, headers, out)) for out in times
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    spent = sorted(t for out in times for t in out)
    print(
        f"{label:18} {clients:8} {len(spent) / SECONDS:11,.0f} "
        f"{statistics.median(spent) * 1e3:10.2f} {spent[int(len(spent) * 0.99)] * 1e3:9.2f}"
    )


if __name__ == "__main__":
    main()
