"""The graph level of the cache: a graph that was compiled before needs no pass and no generator.

In memory while some function has the code (dropping the last one frees it), and on disk. The key is
the graph's text without names and source lines, so it is what was recorded, not what passes make of
it. Of symbolic dims the image says how each call's sizes and its arena follow from them. On disk an
image has its object files with it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import weakref
from collections.abc import Sequence

from jitgrad.compiler.codegen import host_runtime, objects
from jitgrad.compiler.codegen.objects import Library, load_objects, version_key
from jitgrad.compiler.codegen.target import Target, host
from jitgrad.compiler.compiled import WITHOUT_CODE, Compiled, may_flag
from jitgrad.compiler.host_call import KEY as HOST
from jitgrad.compiler.image import Image
from jitgrad.compiler.ir import Graph, Node
from jitgrad.compiler.options import Options
from jitgrad.compiler.parse import parse_dim
from jitgrad.compiler.passes.fix_sizes import fix_sizes
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.replan import replanner
from jitgrad.compiler.report import Report
from jitgrad.compiler.stamp import source_stamp
from jitgrad.compiler.symbolic import Guard, Sym
from jitgrad.compiler.text import to_text
from jitgrad.runtime import cache
from jitgrad.runtime.knobs import knobs


class Loaded:
    """An image and its machine code, for every Compiled of equal graphs."""

    def __init__(self, image: Image, library: Library) -> None:
        self.image, self.library = image, library


_loaded: weakref.WeakValueDictionary[str, Loaded] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def graph_key(graph: Graph, options: Options, target: Target) -> str:
    """The key of a recorded graph: canonical text, options, target, versions."""
    text = to_text(graph, names=False)
    chosen = repr((options.strides, options.memory_limit, sorted(options.constants)))
    ranges = repr((sorted(graph.env.low.items()), sorted(graph.env.high.items())))
    parts = [text, chosen, ranges, version_key(target), source_stamp()]
    return "image-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_cached(graph: Graph, options: Options) -> bool:
    """Whether the graph's image can be kept. (Where memory is limited and dims are symbolic, each
    call's plan is checked, by arrays that the image does not name.)"""
    return not graph.env.hints or options.memory_limit is None


def simplified(graph: Graph) -> Graph:
    """The graph as the passes leave it that numbers of its nodes refer to."""
    with graph.env.deciding_by_form():
        return simplify(fix_sizes(graph))


def sizes_of(graph: Graph, image: Image) -> list[Sym] | None:
    """The symbolic sizes that an image's calls bring, in the dims of a graph; None where what
    compiling assumed of them does not hold for it. Else the graph's guards say it from here on."""
    env = graph.env
    dims = {name: Sym({(name,): 1}, env) for name in env.hints}
    with env.deciding_by_form():
        guards = [(k, parse_dim(a, dims), parse_dim(b, dims), o) for k, a, b, o in image.guards]
        found = [parse_dim(text, dims) for text in image.sizes]
    if not all(Guard(*g, "").holds(env.hints) for g in guards):
        return None
    if not all(isinstance(s, Sym) for s in found):
        return None
    for guard in guards:
        env.guard(*guard)
    return found  # type: ignore[return-value]


def sites_of(graph: Graph) -> Sequence[Node]:
    """The nodes of a simplified graph that have fault sites, by the site's number."""
    return [n for n in graph.nodes if may_flag(n)]


def find_compiled(graph: Graph, options: Options | None = None) -> Compiled | None:
    """The code of an equal graph that was compiled before, for this one; or None."""
    options = options or Options()
    if not knobs.cache or knobs.dump or not is_cached(graph, options):
        return None
    start = time.perf_counter()
    target = options.target or host()
    key = graph_key(graph, options, target)
    with _lock:
        found = _loaded.get(key)
    if found is None:
        image = _read(key)
        if image is None:
            return None
        host_runtime.install(target)
        library = load_objects([k for k, _ in image.kernels if k not in WITHOUT_CODE], target)
        if library is None:
            return None
        found = Loaded(image, library)
        with _lock:
            found = _loaded.setdefault(key, found)
    syms = sizes_of(graph, found.image)
    if syms is None:
        return None
    if any(k == HOST for k, _ in found.image.kernels):
        graph = simplified(graph)  # calls of references are numbered by its nodes
    report = Report(**found.image.report)
    report.milliseconds = {"find": (time.perf_counter() - start) * 1e3}
    report.cached = True
    replan = replanner(found.image, graph.env) if syms else None
    return Compiled(graph, found, lambda: sites_of(simplified(graph)), report, syms, replan)


def _entry(image: Image, library: Library) -> bytes:
    """An image with its object files in one piece, so that a program is one file on disk: a line
    that says how long the parts are, and they."""
    text, code = image.to_json(), library.objects()
    lengths = [len(text), [[name, len(data)] for name, data in code.items()]]
    return b"".join([json.dumps(lengths).encode(), b"\n", text, *code.values()])


def _read(key: str) -> Image | None:
    """The image on disk, whose object files are then in memory; None where there is none."""
    data = cache.get(key)
    if data is None:
        return None
    line, _, rest = data.partition(b"\n")
    try:
        length, parts = json.loads(line)
        at, code = int(length), dict[str, bytes]()
        for name, size in parts:
            code[str(name)] = rest[at : at + int(size)]
            at += int(size)
    except (ValueError, TypeError):
        return None
    image = Image.from_json(rest[: int(length)])
    if image is not None:
        objects.remember(code)
    return image


def remember(key: str, image: Image, library: Library) -> Loaded:
    """Keeps what was compiled. (Another program of this key, made for other sizes, say, may be
    there already: what compiled this one goes on with this one.)"""
    cache.put(key, _entry(image, library))
    found = Loaded(image, library)
    with _lock:
        _loaded[key] = found
    return found
