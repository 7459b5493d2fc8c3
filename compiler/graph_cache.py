"""The graph level of the cache: a graph that was compiled before needs no pass and no generator.

In memory while some function has the code (dropping the last one frees it), and on disk. The key is
the graph's text without names and source lines, so it is what was recorded, not what passes make of
it. Graphs with symbolic dims are compiled each time; their kernels are cached (objects.py).
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Sequence

from jitgrad.compiler.codegen import host_runtime
from jitgrad.compiler.codegen.objects import Library, load_objects, version_key
from jitgrad.compiler.codegen.target import Target, host
from jitgrad.compiler.compiled import WITHOUT_CODE, Compiled, may_flag
from jitgrad.compiler.host_call import KEY as HOST
from jitgrad.compiler.image import Image
from jitgrad.compiler.ir import Graph, Node
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.report import Report
from jitgrad.compiler.stamp import source_stamp
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
    parts = [text, chosen, version_key(target), source_stamp()]
    return "image-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_cached(graph: Graph) -> bool:
    """Whether the graph's image can be kept: no dim of it is symbolic."""
    return not graph.env.hints


def sites_of(graph: Graph) -> Sequence[Node]:
    """The nodes of a simplified graph that have fault sites, by the site's number."""
    return [n for n in graph.nodes if may_flag(n)]


def find_compiled(graph: Graph, options: Options | None = None) -> Compiled | None:
    """The code of an equal graph that was compiled before, for this one; or None."""
    if not knobs.cache or knobs.dump or not is_cached(graph):
        return None
    start = time.perf_counter()
    options = options or Options()
    target = options.target or host()
    key = graph_key(graph, options, target)
    with _lock:
        found = _loaded.get(key)
    if found is None:
        data = cache.get(key)
        image = None if data is None else Image.from_json(data)
        if image is None:
            return None
        host_runtime.install(target)
        library = load_objects([k for k, _ in image.kernels if k not in WITHOUT_CODE], target)
        if library is None:
            return None
        found = Loaded(image, library)
        with _lock:
            found = _loaded.setdefault(key, found)
    if any(k == HOST for k, _ in found.image.kernels):
        graph = simplify(graph)  # calls of references are numbered by its nodes
    report = Report(**found.image.report)
    report.milliseconds = {"find": (time.perf_counter() - start) * 1e3}
    report.cached = True
    return Compiled(graph, found, lambda: sites_of(simplify(graph)), report)


def remember(key: str, image: Image, library: Library) -> Loaded:
    """Keeps what was compiled."""
    cache.put(key, image.to_json())
    found = Loaded(image, library)
    with _lock:
        return _loaded.setdefault(key, found)
