"""Serving: the protocol, batching, limits, crashes, stopping. The server is a real process."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.serve.protocol import BadRequest, Port, parse_request, write_answer

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

SERVE = "import sys; from jitgrad.serve import serve; serve(sys.argv[1], **eval(sys.argv[2]))"


class Server:
    """A server in a process of its own."""

    def __init__(self, path, **options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        options |= {"port": self.port, "name": "m", "log_level": "warning", "threads": 1}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(path), repr(options)], stderr=subprocess.PIPE
        )
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            try:
                if self.get("/v2/health/ready")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        self.process.kill()
        raise AssertionError(self.process.communicate()[1].decode())

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def get(self, path):
        c = self.connect()
        c.request("GET", path)
        r = c.getresponse()
        body = r.read()
        return r.status, json.loads(body) if body[:1] in b"{[" else body.decode()

    def post(self, body, headers=None, path="/v2/models/m/infer"):
        c = self.connect()
        c.request(
            "POST", path, body if isinstance(body, bytes) else json.dumps(body), headers or {}
        )
        r = c.getresponse()
        data = r.read()
        length = r.headers.get("Inference-Header-Content-Length")
        if length is None:
            return r.status, json.loads(data)
        return r.status, json.loads(data[: int(length)]), data[int(length) :]

    def children(self):
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(p) for p in Path(path).read_text().split()]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def model():
    jg.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "m.jgx"
    jg.export(model, jg.rand(2, 4), dynamic_shapes=[{0: "n"}], names=["x"]).save(path)
    return path


@pytest.fixture(scope="module")
def server(path):
    server = Server(path, max_batch=8, max_delay_ms=20, max_body=10_000, body_timeout_s=1.0)
    yield server
    assert server.stop() == 0


def request(rows, **more):
    x = {"name": "x", "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist()}
    return {"inputs": [x], **more}


def numbers(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)


# -- the protocol --------------------------------------------------------------------------------
def test_health_and_metadata(server):
    assert server.get("/v2/health/live") == (200, {"live": True})
    assert server.get("/v2/models/m/ready")[0] == 200
    status, about = server.get("/v2/models/m")
    assert status == 200
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert about["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 3]}]
    assert "binary_tensor_data" in server.get("/v2")[1]["extensions"]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_answers_are_the_models(server, model, n):
    x = numbers(n)
    status, answer = server.post(request(x, id="a7"))
    assert status == 200 and answer["id"] == "a7" and answer["model_name"] == "m"
    (y,) = answer["outputs"]
    assert y["shape"] == [n, 3] and y["datatype"] == "FP32"
    got = np.array(y["data"], np.float32).reshape(n, 3)
    np.testing.assert_allclose(got, model(jg.from_numpy(x)).detach().numpy(), atol=1e-6)


def test_binary_tensors(server, model):
    x = numbers(3)
    body = json.dumps({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 4],
                    "parameters": {"binary_data_size": x.nbytes}}],
        "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip
    headers = {"Inference-Header-Content-Length": str(len(body))}
    status, answer, *binary = server.post(body + x.tobytes(), headers)
    assert status == 200 and binary, answer
    binary = binary[0]
    assert status == 200
    assert answer["outputs"][0]["parameters"]["binary_data_size"] == len(binary) == 36
    want = model(jg.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(np.frombuffer(binary, np.float32).reshape(3, 3), want, atol=1e-6)


BAD = [
    (b"{", "no JSON"),
    (b"[]", "expected a JSON object; got an array"),
    ({}, "expected 'inputs'"),
    ({"inputs": []}, "missing inputs: x"),
    (request(numbers(2), id=3), "'id' to be a string"),
    ({"inputs": [{"name": "y"}]}, "no input is called 'y'; expected x"),
    ({"inputs": [{"name": "x", "datatype": "FP64"}]}, "expected datatype FP32; got 'FP64'"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 5], "data": []}]},
     "expected shape ['any', 4]; got [2, 5]"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-2, 4], "data": []}]},
     "expected shape"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": "x", "data": []}]}, "expected shape"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3]}]},
     "expected 4 elements"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, "a", 3]}]},
     "expected elements of FP32; got a string"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, None, 2, 3]}]},
     "expected elements of FP32; got null"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [[1, 2, 3, 4], 5]}]},
     "mixed"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3], [4]]}]},
     "expected rows of one length in 'data'; got rows of 1 and of 3"),
    ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4],
                  "parameters": {"binary_data_size": 16}}]}, "16 bytes of binary data"),
    (request(numbers(1), outputs=[{"name": "z"}]), "no output is called 'z'"),
    (request(numbers(1), parameters=3), "'parameters' to be an object; got the number 3"),
    ({"inputs": [{"name": [1]}]}, "no input is called an array; expected x"),
    (request(numbers(1), outputs=[{"name": {}}]), "no output is called an object"),
    (request(numbers(1), parameters={"binary_data_output": "no"}),
     "expected 'binary_data_output' to be a boolean; got a string"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), BAD, ids=range(len(BAD)))
def test_bad_requests(server, body, reason):
    status, answer = server.post(body)
    assert status == 400 and reason in answer["error"], answer


def test_paths_and_methods_that_are_not_there(server):
    assert server.get("/v2/models/other")[0] == 404
    status, answer = server.get("/v2/models/m/infer")
    assert status == 405 and "POST /v2/models/m/infer" in answer["error"]


def test_a_body_that_is_too_large(server):
    assert server.post(b"x" * 20_000)[0] == 413
    c = server.connect()  # of no stated length
    c.request("POST", "/v2/models/m/infer", iter([b"x" * 6000] * 3), encode_chunked=True,
              headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    assert c.getresponse().status == 413


def test_bodies_are_read_as_they_are(server):
    headers = {"Content-Encoding": "gzip"}
    status, answer = server.post(request(numbers(1)), headers)
    assert status == 415 and "got Content-Encoding: gzip" in answer["error"]
    assert server.post(request(numbers(1)), {"Content-Encoding": "identity"})[0] == 200


def test_a_slow_client_does_not_hold_others_up(server):
    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
    assert server.post(request(numbers(1)))[0] == 200
    slow.settimeout(30)
    assert b" 408 " in slow.recv(200)
    slow.close()


def test_headers_that_do_not_come_are_not_waited_for(server):
    """Neither on a new connection, nor after an answer."""
    whole = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    for first, sent in ((b"", b""), (b"", b"POST /v2/mod"), (b"", whole[:-2]), (whole, b"GET")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
            if first:
                slow.sendall(first)
                assert slow.recv(1000).startswith(b"HTTP/1.1 200 ")
                time.sleep(0.2)
            slow.sendall(sent)
            got = b"".join(iter(lambda s=slow: s.recv(1000), b""))
            assert (b" 408 " in got) if sent else not got, (sent, got)


def test_a_connection_stays_for_as_long_as_its_requests_come(server):
    c = server.connect()
    c.connect()
    for _ in range(3):
        time.sleep(0.5)  # headers may take 1.0
        c.request("GET", "/v2")
        assert c.getresponse().read()


def test_only_sizes_of_one_name_must_be_equal(tmp_path):
    """An axis that is free is not the batch's for being the first."""
    nearest = jg.export(
        lambda q, db: (q @ db.T).argmax(1), jg.rand(2, 3), jg.rand(4, 3),
        dynamic_shapes={"q": {0: "n"}, "db": {0: "m"}},
    )  # fmt: skip
    nearest.save(tmp_path / "m.jgx")
    q, db = np.eye(3, dtype=np.float32)[1:2], np.eye(3, dtype=np.float32).repeat(2, 0)
    for options in ({}, {"max_batch": 4}):
        server = Server(tmp_path / "m.jgx", **options)
        try:
            body = request(q)
            body["inputs"][0]["name"] = "q"
            body["inputs"] += request(db)["inputs"]
            body["inputs"][1]["name"] = "db"
            status, answer = server.post(body)
            assert status == 200 and answer["outputs"][0]["data"] == [2], answer
        finally:
            assert server.stop() == 0


def test_sizes_of_one_name_are_equal_wherever_they_are():
    ports = [Port("h", "float32", ("b",)), Port("x", "float32", ("t", "b"))]

    def parse(b, t, again):
        rows = [("h", [b]), ("x", [t, again])]
        inputs = [
            {"name": n, "datatype": "FP32", "shape": s, "data": [0] * int(np.prod(s))}
            for n, s in rows
        ]
        return parse_request(json.dumps({"inputs": inputs}).encode(), None, ports, ports)

    assert [a.shape for a in parse(2, 3, 2).inputs] == [(2,), (3, 2)]
    with pytest.raises(BadRequest, match=r"one size b; got 2 \(axis 0 of 'h'\) and 3 \(axis 1 of"):
        parse(2, 2, 3)


# -- batching ------------------------------------------------------------------------------------
def test_requests_are_joined_and_answered_apart(server, model):
    before = server.get("/metrics")[1]
    answers = {}

    def ask(k):
        answers[k] = server.post(request(numbers(1 + k % 3, seed=k)))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(24)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for k, (status, answer) in answers.items():
        assert status == 200
        x = numbers(1 + k % 3, seed=k)
        got = np.array(answer["outputs"][0]["data"]).reshape(-1, 3)
        np.testing.assert_allclose(got, model(jg.from_numpy(x)).detach().numpy(), atol=1e-5)
    after = server.get("/metrics")[1]
    calls = value(after, "jitgrad_call_seconds_count") - value(before, "jitgrad_call_seconds_count")
    assert calls < 24  # fewer calls than requests


def value(metrics, name):
    return float(next(s for s in metrics.splitlines() if s.startswith(name + " ")).split()[1])


def test_metrics(server):
    server.post(request(numbers(1)))
    server.post(b"{")
    text = server.get("/metrics")[1]
    assert 'jitgrad_requests_total{status="200"}' in text
    assert 'jitgrad_requests_total{status="400"}' in text
    assert value(text, "jitgrad_worker_starts") >= 1


# -- crashes and stopping ------------------------------------------------------------------------
def test_a_killed_worker_loses_nothing(path):
    server = Server(path, max_batch=4, max_delay_ms=1)
    try:
        statuses, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                statuses.append(server.post(request(numbers(2)))[0])

        threads = [threading.Thread(target=ask) for _ in range(4)]
        [t.start() for t in threads]
        for _ in range(3):
            time.sleep(0.4)
            for pid in server.children():
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            time.sleep(1.5)
        stop.set()
        [t.join() for t in threads]
        assert set(statuses) == {200} and len(statuses) > 4
        assert value(server.get("/metrics")[1], "jitgrad_worker_starts") >= 2
    finally:
        assert server.stop() == 0


def test_what_was_accepted_is_answered_before_the_end(tmp_path):
    def slow(x):
        for _ in range(60):
            x = (x @ x.t()) @ x / 1000
        return x

    jg.export(slow, jg.rand(300, 300)).save(tmp_path / "slow.jgx")
    server = Server(tmp_path / "slow.jgx")
    x = np.zeros((300, 300), np.float32)
    about = {"name": "x", "datatype": "FP32", "shape": [300, 300],
             "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    body = json.dumps({"inputs": [about]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(body))}
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.post(body + x.tobytes(), headers)[0]))
        for _ in range(3)
    ]
    [t.start() for t in threads]
    time.sleep(0.5)
    assert server.stop() == 0
    [t.join() for t in threads]
    assert answers == [200] * 3


def test_faults_of_the_clients_values_and_a_full_queue(tmp_path):
    table = jg.arange(10.0)
    jg.export(lambda i: table[i], jg.tensor([1, 2])).save(tmp_path / "t.jgx")
    server = Server(tmp_path / "t.jgx", max_queue=1)
    try:
        body = {"inputs": [{"name": "i", "datatype": "INT64", "shape": [2], "data": [1, 11]}]}
        status, answer = server.post(body)
        assert status == 400 and "index 11" in answer["error"]
        body["inputs"][0]["data"] = [1, 2]
        assert server.post(body)[1]["outputs"][0]["data"] == [1.0, 2.0]
        statuses = []

        def ask():
            statuses.append(server.post(body)[0])

        threads = [threading.Thread(target=ask) for _ in range(40)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert set(statuses) <= {200, 503} and 200 in statuses
    finally:
        assert server.stop() == 0


def test_files_that_cannot_be_served(tmp_path):
    (tmp_path / "m.jgx").write_text("no")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "m.jgx"), "{}"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "no whole zip file" in done.stderr


def test_the_dockerfile_is_clean():
    lint = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if lint is None:
        pytest.skip("hadolint is not installed")
    file = Path(__file__).parent.parent / "examples" / "serve" / "Dockerfile"
    done = subprocess.run([lint, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    text = file.read_text()
    assert f"jitgrad[serve]=={jg.version.jitgrad}" in text and "USER 1000" in text


# -- values in the protocol's forms --------------------------------------------------------------
@pytest.mark.parametrize(("dtype", "datatype", "good", "bad"), [
    ("bool", "BOOL", [True, False], [1, 0]), ("uint8", "UINT8", [0, 255], [0, 256]),
    ("int8", "INT8", [-128, 127], [0, 128]), ("int64", "INT64", [2**62, -1], [0.5, 1]),
    ("float16", "FP16", [0.5, 1], ["1", 1]), ("float64", "FP64", [1e300, 2], [True, 2]),
    ("bfloat16", "BF16", [1.5, 2], [[1], 2]),
])  # fmt: skip
def test_datatypes(dtype, datatype, good, bad):
    ports = [Port("x", dtype, (2,))]
    x = {"name": "x", "datatype": datatype, "shape": [2]}

    def parse(data):
        body = json.dumps({"inputs": [{**x, "data": data}]}).encode()
        return parse_request(body, None, ports, ports)

    made = parse(good)
    assert made.inputs[0].astype(np.float64).tolist() == [float(v) for v in good]
    with pytest.raises(BadRequest):
        parse(bad)
    made.outputs = {"x": True}
    body, length = write_answer("m", made, {"x": made.inputs[0]}, ports)
    again = json.dumps({
        "inputs": [{**x, "parameters": {"binary_data_size": len(body) - length}}]
    }).encode()  # fmt: skip
    raw = parse_request(again + body[length:], str(len(again)), ports, ports)
    assert raw.inputs[0].tobytes() == made.inputs[0].tobytes()


@pytest.mark.parametrize(("datatype", "dtype", "text", "want"), [
    ("FP32", "float32", "1e400", None), ("FP32", "float32", "-1e39", None),
    ("FP16", "float16", "70000", None), ("BF16", "bfloat16", "1e39", None),
    ("FP64", "float64", "1e400", None), ("FP64", "float64", "1" + "0" * 400, None),
    ("FP32", "float32", '"-Infinity"', -np.inf), ("FP32", "float32", "Infinity", np.inf),
    ("INT64", "int64", "1.0", 1), ("INT64", "int64", "-2.5e1", -25), ("UINT8", "uint8", "2e2", 200),
    ("UINT8", "uint8", "3e2", None), ("INT64", "int64", "0.5", None),
    ("INT64", "int64", "9007199254740993.0", None),  # a double has no such number
    ("BOOL", "bool", "1.0", None),
])  # fmt: skip
def test_numbers_are_what_was_written_or_refused(datatype, dtype, text, want):
    ports = [Port("x", dtype, (1,))]
    body = '{"inputs": [{"name": "x", "datatype": "%s", "shape": [1], "data": [%s]}]}'
    body = (body % (datatype, text)).encode()
    if want is None:
        with pytest.raises(
            BadRequest, match="does not fit|expected elements of .*; got the number"
        ):
            parse_request(body, None, ports, ports)
    else:
        assert parse_request(body, None, ports, ports).inputs[0].tolist() == [want]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_answers_are_strict_json(dtype):
    """NaN and infinities are strings, both ways; binary data has them as they are."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    datatype = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}[dtype]
    ports = [Port("x", dtype, (5,))]
    data = ["NaN", "Infinity", 1.5, "-Infinity", -0.0]
    row = {"name": "x", "datatype": datatype, "shape": [5], "data": data}
    made = parse_request(json.dumps({"inputs": [row]}).encode(), None, ports, ports)
    (x,) = made.inputs
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(wide, [np.nan, np.inf, 1.5, -np.inf, -0.0])
    body, length = write_answer("m", made, {"x": x}, ports)
    assert length is None
    assert json.loads(body, parse_constant=refuse)["outputs"][0]["data"] == data
    made.outputs["x"] = True
    body, length = write_answer("m", made, {"x": x}, ports)
    assert body[length:] == x.tobytes()
    with pytest.raises(BadRequest, match="expected elements of"):
        row["data"] = ["nan", 1.0, 1.0, 1.0, 1.0]
        parse_request(json.dumps({"inputs": [row]}).encode(), None, ports, ports)


@pytest.mark.parametrize("seed", range(300))
def test_the_parser_survives_anything(seed):
    """Bytes of a good request, altered: parsed, or refused with a reason."""
    rng = np.random.default_rng(seed)
    ports = [Port("x", "float32", ("n", 2)), Port("b", "bool", (1,))]
    good = json.dumps({"id": "q", "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
        {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]},
    ]}).encode()  # fmt: skip
    body = bytearray(good + struct.pack("<ff", 1, 2))
    for _ in range(int(rng.integers(1, 6))):
        body[int(rng.integers(len(body)))] = int(rng.integers(256))
    try:
        made = parse_request(bytes(body), str(len(good)), ports, ports)
        assert made.inputs[0].dtype == np.float32 and made.inputs[0].shape[1] == 2
    except BadRequest as error:
        assert str(error)


KINDS = [None, True, False, 0, -1, 2, 1.5, 1e300, 10**400, "", "x", "\ud800", [], [1], [[1]], {},
         {"x": 1}, [{}], {"name": [1]}]  # fmt: skip


def places(x, path=()):
    """The paths to everything in a request."""
    yield path
    for k, v in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield from places(v, (*path, k))


def put(x, path, value):
    """A request with something else at one place."""
    if not path:
        return value
    made = dict(x) if isinstance(x, dict) else list(x)
    made[path[0]] = put(x[path[0]], path[1:], value)
    return made


WHOLE = {
    "id": "q", "parameters": {"binary_data_output": False},
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
        {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]},
        {"name": "k", "datatype": "INT8", "shape": [1, 1], "parameters": {}, "data": [[1]]},
    ],
    "outputs": [{"name": "x", "parameters": {"binary_data": False}}],
}  # fmt: skip


@pytest.mark.parametrize("path", list(places(WHOLE)), ids=lambda path: ".".join(map(str, path)))
def test_each_kind_of_json_at_each_place_of_a_request(path):
    """It is parsed, or refused with a reason that can be sent."""
    ports = [
        Port("x", "float32", ("n", "m")), Port("b", "bool", (1,)), Port("k", "int8", ("a", "c")),
    ]  # fmt: skip
    for value in KINDS:
        text = json.dumps(put(WHOLE, path, value)).encode()
        try:
            made = parse_request(text + bytes(8), str(len(text)), ports, ports)
            assert [x.dtype.name for x in made.inputs] == ["float32", "bool", "int8"]
            assert all(type(b) is bool for b in made.outputs.values())
        except BadRequest as error:
            assert str(error).encode()


@pytest.mark.parametrize("binary", [False, True])
def test_shapes_that_no_array_has(binary):
    ports = [Port("x", "float32", ("n", "m"))]
    row = {"name": "x", "datatype": "FP32", "shape": [0, 10**30]}
    row |= {"parameters": {"binary_data_size": 0}} if binary else {"data": []}
    text = json.dumps({"inputs": [row]}).encode()
    with pytest.raises(BadRequest, match="no array has shape"):
        parse_request(text, str(len(text)), ports, ports)


def test_what_nothing_foresaw_is_counted_and_answered():
    from jitgrad.serve.app import Settings, make_app
    from jitgrad.serve.batching import Limits

    class Worker:
        starts = 1
        outputs = ()

        @property
        def inputs(self):
            raise KeyError("surprise")

    app = make_app([Worker()], Settings("m", Limits()))

    def ask(method, path):
        """The status and the body that the application sends."""
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "headers": [],
            "query_string": b"", "root_path": "", "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        with contextlib.suppress(KeyError):  # which is for the server's log
            asyncio.run(app(scope, receive, send))
        return sent[0]["status"], b"".join(m["body"] for m in sent[1:])

    for path in ("/v2/models/m/infer", "/v2/models/m/versions/1/infer"):
        status, body = ask("POST", path)
        assert (status, json.loads(body)) == (500, {"error": "the server failed: KeyError"})
    assert ask("GET", "/v2/models/m")[0] == 500
    assert b'jitgrad_requests_total{status="500"} 2.0' in ask("GET", "/metrics")[1]
