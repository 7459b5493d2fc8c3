"""Exported.save and load_exported: round trips, and files that are damaged, foreign or hostile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections import namedtuple

import numpy as np
import pytest
from random_graphs import random_graph

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler.ir import Input
from jitgrad.compiler.parse import parse
from jitgrad.exported import Exported
from jitgrad.pytree import flatten
from jitgrad.runtime.errors import ArtifactError

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    left: object
    right: object


@pytest.fixture(scope="module")
def model():
    jg.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "m.jgx"
    jg.export(model, jg.rand(2, 4)).save(path)
    return path


# -- round trips ---------------------------------------------------------------------------------
def test_a_model_comes_back(model, saved):
    x = jg.rand(2, 4)
    exported, loaded = jg.export(model, x), jg.load_exported(saved)
    assert str(loaded).split("\n")[0] == str(exported).split("\n")[0]
    assert loaded.input_names == exported.input_names == ("input",)
    assert set(loaded.state) == set(exported.state) and "1.running_mean" in loaded.state
    assert loaded(x).equal(exported(x)) and jg.allclose(loaded(x), model(x), atol=1e-6)
    loaded.save(saved)  # over the file itself
    assert jg.load_exported(saved)(x).equal(exported(x))


def test_no_folder_of_this_machine_is_in_the_file(saved):
    text = zipfile.ZipFile(saved).read("graph.txt").decode()
    assert "# test_exported_file.py:" in text and "/test_exported_file.py" not in text


def test_results_keep_their_structure(tmp_path):
    def f(x):
        return {"a": [x, (x + 1,)], "b": Point(x, -x), "c": Pair(x * 2, x * 3)}

    x = jg.arange(3.0)
    jg.export(f, x).save(tmp_path / "f.jgx")
    got = jg.load_exported(tmp_path / "f.jgx")(x)
    assert list(got) == ["a", "b", "c"] and type(got["a"]) is list and type(got["a"][1]) is tuple
    assert type(got["b"]) is tuple and list(got["c"]) == ["left", "right"]
    want = flatten(f(x))[0]
    assert all(a.equal(b) for a, b in zip(flatten(got)[0], want, strict=True))


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "complex64", "complex128"]
)
def test_state_of_every_dtype(dtype, tmp_path):
    w = jg.tensor([[0, 1, 2], [3, 0, 5]]).to(getattr(jg, dtype))
    jg.export(lambda x: (w, x + 1), jg.rand(2)).save(tmp_path / "w.jgx")
    loaded = jg.load_exported(tmp_path / "w.jgx")
    assert loaded(jg.rand(2))[0].equal(w) and loaded(jg.rand(2))[0].dtype is w.dtype


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed, tmp_path):
    g, arrays = random_graph(seed)
    g.writes, g.rebinds = [], []
    state, given = {}, []
    for k, item in enumerate(g.inputs):
        kind = "state" if k % 2 else "arg"
        g.inputs[k] = Input(item.value, kind, item.name)
        if kind == "state":
            state[item.name] = arrays[k]
        else:
            given.append(jg.from_numpy(arrays[k].copy()))
    names = [i.name for i in g.inputs if i.kind == "arg"]
    outputs = [f"y{k}" for k in range(len(g.outputs))]
    structure = flatten([0] * len(outputs))[1]
    exported = Exported(g, state, names, outputs, structure)
    exported.save(tmp_path / "g.jgx")
    loaded = jg.load_exported(tmp_path / "g.jgx")
    assert [n.op for n in loaded.graph.nodes] == [n.op for n in g.nodes]
    for a, b in zip(loaded(*given), exported(*given), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_symbolic_sizes_and_what_they_must_fulfil(tmp_path):
    def f(x, y):
        return (x[2 : x.shape[0] // 2 + 2] * 2).sum(0), x[2:] + y[2:]

    x, y = jg.rand(6, 3), jg.rand(6, 3)
    exported = jg.export(f, x, y, dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    exported.save(tmp_path / "f.jgx")
    loaded = jg.load_exported(tmp_path / "f.jgx")
    assert str(loaded).split("return")[1] == str(exported).split("return")[1]
    guards = [set(map(str, e.graph.env.guards)) for e in (loaded, exported)]
    assert guards[0] == guards[1] and guards[0]
    x, y = jg.rand(10, 3), jg.rand(10, 3)
    for a, b in zip(loaded(x, y), f(x, y), strict=True):
        assert jg.allclose(a, b)
    with pytest.raises(ValueError, match="expected input 'y'"):
        loaded(x, jg.rand(9, 3))


@pytest.mark.parametrize("order", [(3, 2, 1, 0, 7), (0, 1, 7, 2, 3)])
def test_sizes_that_the_compiler_took_for_others(order):
    """One of 3 columns, rows of any number, 3 and 1 among them, in any order of calls."""
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    exported = jg.export(model, jg.rand(2, 4), dynamic_shapes=[{0: "n"}])
    for n in order:
        x = jg.rand(n, 4)
        assert exported(x).shape == (n, 3) and jg.allclose(exported(x), model(x), atol=1e-6)


def test_sizes_that_happen_to_be_equal(tmp_path):
    """Recorded where height and width differ: equal ones need no recording of their own."""
    jg.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    ).eval()  # fmt: skip
    dynamic = [{0: "b", 2: "h", 3: "w"}]
    exported = jg.export(model, jg.rand(2, 2, 17, 13), dynamic_shapes=dynamic)
    exported.save(tmp_path / "m.jgx")
    loaded = jg.load_exported(tmp_path / "m.jgx")
    for shape in ((2, 2, 9, 9), (5, 2, 16, 16), (16, 2, 16, 12)):
        x = jg.rand(*shape)
        for found in (exported(x), loaded(x)):
            assert jg.allclose(found, model(x), atol=1e-5)


def test_guards_in_text():
    text = (
        "graph f(n=6, m=4) {\n  guard le <n> <2*m> True\n  guard eq <n> <7> False\n"
        '  %0: float32[n, m] = arg "x"\n  return %0\n}'
    )
    graph = parse(text)
    assert str(graph) == text
    assert graph.env.holds({"n": 6, "m": 4}) and not graph.env.holds({"n": 9, "m": 4})
    assert not graph.env.holds({"n": 7, "m": 4})


# -- files that are wrong ------------------------------------------------------------------------
def refuses(path, match):
    with pytest.raises(ArtifactError, match=match):
        jg.load_exported(path)


def rewritten(path, change):
    """The file with members changed, and digests that fit them again."""
    members = {n: zipfile.ZipFile(path).read(n) for n in zipfile.ZipFile(path).namelist()}
    about = json.loads(members["metadata.json"])
    change(members, about)
    for name, stated in about.get("members", {}).items():
        if name in members:
            data = members[name]
            stated.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    members.setdefault("metadata.json", b"")
    if members["metadata.json"]:
        members["metadata.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def test_missing_and_foreign_files(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match="load_exported"):
        jg.load_exported(tmp_path / "none.jgx")
    (tmp_path / "text").write_text("hello")
    refuses(tmp_path / "text", "no whole zip file")
    jg.save({"w": jg.ones(2)}, tmp_path / "w.pt")
    refuses(tmp_path / "w.pt", "it holds 'jitgrad.json'")
    with pytest.raises(OSError, match="expected a place that can be written"):
        jg.load_exported(saved).save(tmp_path / "no" / "folder.jgx")


def test_damage_is_found(saved):
    """Any byte that is altered, any cut: an error, or the same content (bytes that zip ignores)."""
    whole = saved.read_bytes()
    want = jg.load_exported(saved)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 150):
        data = bytearray(whole)
        data[at] ^= 1 << int(rng.integers(8))
        saved.write_bytes(data)
        try:
            got = jg.load_exported(saved)
        except ArtifactError:
            continue
        assert str(got) == str(want)
        assert all((got.state[k] == want.state[k]).all() for k in want.state)
    for size in [0, 1, 21, len(whole) // 2, len(whole) - 1]:
        saved.write_bytes(whole[:size])
        refuses(saved, "no whole zip file")


def test_other_versions(saved):
    refuses(rewritten(saved, lambda m, about: about.update(version=99)), "it has version 99, this")
    for odd in (1.0, True):  # equal to 1, but none that save writes
        refuses(rewritten(saved, lambda m, about, v=odd: about.update(version=v)), f"version {odd}")
    refuses(rewritten(saved, lambda m, about: about.update(format="x")), "another format")


def test_members_that_save_does_not_write(saved):
    with zipfile.ZipFile(saved, "a") as file:
        file.writestr("../../evil", b"x")
    refuses(saved, "evil")


def test_a_bomb_is_not_unpacked(saved, tmp_path):
    members = {n: zipfile.ZipFile(saved).read(n) for n in zipfile.ZipFile(saved).namelist()}
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in (members | {"graph.txt": b" " * 10**8}).items():
            file.writestr(name, data)
    refuses(saved, "compressed")


_SCAN = (
    'graph f() {\n %0: float32[2] = arg "input"\n @1 = graph body() {\n'
    ' %0: float32[] = arg "a"\n %1: float32[] = arg "b"\n %2: float32[] = add(%0, %1)\n'
    " %3: int64[] = cast(%2) {dtype=:int64}\n return %2, %2\n }\n"
    " %1: float32[] = sum(%0) {axes=(0,), keepdim=False}\n"
    " %2: float32[], %3: float32[2] = scan(%1, %0) {body=@1, carries=1, length=2, reverse=False, "
    "xs=1}\n return %3\n}"
)


def test_a_graph_with_a_loop_is_read(saved):
    """What the altered ones below are altered from."""
    x = jg.tensor([1.0, 2.0])
    (found,) = parse(_SCAN).outputs
    assert str(found.type) == "float32[2]"
    exported = jg.export(lambda x: jg.scan(lambda c, t: (c + t, c + t), x.sum(), x)[1], x)
    assert exported(x).tolist() == [4.0, 6.0]


GRAPHS = {
    "": "line 1",
    "graph f() {\n %1: float32[2] = relu(%0)\n return %1\n}": "a value defined above",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = relu(%1)\n return %1\n}':
        "a value defined above",
    'graph f() {\n %0: float32[2] = arg "input"\n return %1\n}': "a value defined above",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[3] = relu(%0)\n return %1\n}':
        "as relu infers",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = system(%0)\n return %1\n}':
        "the name of an op",
    'graph f() {\n %0: float32[-3] = arg "input"\n return %0\n}': "type",
    'graph f() {\n %0: float32[99999999999, 99999999999] = arg "input"\n return %0\n}': "type",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = permute(%0) {axes="x"}\n '
    "return %1\n}": "graph.txt",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = permute(%0) {axes='
    + "(" * 5000 + ")" * 5000 + "}\n return %1\n}": "graph.txt",
    'graph f() {\n %0: float32[] = arg "input"\n %1: float32[2] = full() {device="cpu", '
    "dtype=:float32, shape=(1000000000000000,), value=0.0}\n return %1\n}": "graph.txt",
    'graph f() { { {\n %0: float32[2] = arg "input"\n return %0\n}': "line 1: expected the end",
    'graph f() {\n %0: float32[2] = arg "input" ) junk\n return %0\n}': "line 2: expected the end",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = relu(%0) {} 3\n return %1\n}':
        "line 3: expected the end",
    'graph f() {\n %0: float32[2] = arg "input"\n return %0\n write %0 = %0 %0\n}':
        "line 4: expected the end",
    'graph f(n=2) {\n guard le <n> <n> True }\n %0: float32[2] = arg "input"\n return %0\n}':
        "line 2: expected the end",
    'graph f() {\n %0: float32[2] = arg "input"\n %0: float32[2] = relu(%0)\n return %0\n}':
        "a name for a value that no other has",
    'graph f() {\n %0: float32[2] = scalar "input"\n return %0\n}': "graph.txt|inputs",
    'graph f() {\n %0: float32[2] = arg "input"\n return %0\n write %0 = %0\n}': "no state",
    'graph f() {\n %0: float32[2] = arg "other"\n return %0\n}': "not in the graph",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[] = sum(%0) {axes=(01,), '
    "keepdim=False}\n return %1\n}": "expected a number",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2, 1] = reshape(%0) '
    "{shape=(2,True,)}\n return %1\n}": "types",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = expect_range(%0) '
    '{error="IndexError", high=6}\n return %1\n}': "low",
    'graph f() {\n %0: float32[2] = arg "input"\n %1: float32[2] = expect_range(%0) '
    '{error="SystemExit", high=6, low=0, text="x"}\n return %1\n}': "an error of",
    'graph f(n=2) {\n %0: float32[n] = arg "input"\n %1: float32[2] = relu(%0)\n'
    " return %1\n}": "hold only where n == 2",
    **{_SCAN.replace(*change): why for change, why in {
        ("carries=1", "carries=3"): "inputs anew",
        ("xs=1", "xs=9"): "inputs anew",
        ("xs=1", "xs=-1"): "inputs anew",
        ("reverse=False", "reverse=7"): "reverse",
        ("return %2, %2", "return %3, %2"): "inputs anew",
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize("text", GRAPHS, ids=range(len(GRAPHS)))
def test_graphs_that_are_none(text, saved):
    def change(members, about):
        members["graph.txt"] = text.encode()
        about["result"], about["outputs"] = None, ["output"]

    refuses(rewritten(saved, change), GRAPHS[text])


@pytest.mark.parametrize("about", [
    {"result": {"tuple": None}}, {"result": {"dict": [["a"], []]}}, {"result": {"set": [None]}},
    {"result": {"tuple": [None, None]}}, {"outputs": ["a", "a"]}, {"outputs": "x"},
    {"inputs": [1]}, {"inputs": ["x"]}, {"result": json.loads("[" * 60 + "]" * 60)},
    {"members": None}, {"members": {}}, {"members": 3},
    {"arguments": {"dict": [["a"], [None]]}}, {"arguments": {"tuple": [None, None]}},
    {"arguments": {"tuple": [None]}, "parameters": ["a", "b"]},
    {"arguments": {"tuple": [None]}, "parameters": [[]]},
    {"arguments": {"tuple": [None]}, "parameters": 3},
])  # fmt: skip
def test_metadata_that_lies(about, saved):
    with pytest.raises(ArtifactError, match="load_exported"):
        members = {n: zipfile.ZipFile(saved).read(n) for n in zipfile.ZipFile(saved).namelist()}
        new = json.loads(members["metadata.json"]) | about
        with zipfile.ZipFile(saved, "w") as file:
            for name, data in (members | {"metadata.json": json.dumps(new).encode()}).items():
                file.writestr(name, data)
        jg.load_exported(saved)


def test_state_that_does_not_fit(saved):
    from safetensors.numpy import save

    def change(members, about):
        members["state.safetensors"] = save({"0.weight": np.zeros((2, 2), np.float32)})

    refuses(rewritten(saved, change), "differ in")
    jgx = rewritten(saved, lambda m, about: m.update({"state.safetensors": b"x" * 40}))
    refuses(jgx, "state.safetensors")
