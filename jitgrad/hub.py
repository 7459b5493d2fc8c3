"""torch.hub without a network: files that lie in the cache are loaded, nothing is downloaded.

The cache is PyTorch's: $TORCH_HOME or $XDG_CACHE_HOME/torch or ~/.cache/torch, in hub/checkpoints.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlparse

from jitgrad.missing import no_such
from jitgrad.serialization import load as _load

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
"""What finds the hash in the name of a file of weights."""

_chosen: list[str] = []


def _get_torch_home() -> str:
    """The folder that the cache is in."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))


def get_dir() -> str:
    """The folder of the cache."""
    return _chosen[0] if _chosen else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Sets the folder of the cache, for this process."""
    _chosen[:] = [os.path.expanduser(d)]


def load_state_dict_from_url(
    url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True,
    check_hash: bool = False, file_name: str | None = None, weights_only: bool = False,
) -> Any:  # fmt: skip
    """The file of that name in model_dir (default: checkpoints in the cache), if it is there.

    Raises RuntimeError if it is not: jitgrad downloads nothing.
    """
    folder = Path(model_dir) if model_dir else Path(get_dir()) / "checkpoints"
    path = folder / (file_name or os.path.basename(urlparse(url).path))
    if not path.exists():
        raise RuntimeError(
            f"[load_state_dict_from_url] expected {path} to be there: jitgrad downloads nothing; "
            f"fetch {url} yourself, put it there, or load it with jitgrad.load(path)"
        )
    return _load(path, map_location=map_location)


def download_url_to_file(
    url: str, dst: str, hash_prefix: str | None = None, progress: bool = True
) -> NoReturn:
    """Raises RuntimeError: jitgrad downloads nothing."""
    raise RuntimeError(
        f"[download_url_to_file] jitgrad downloads nothing; fetch {url} yourself, to {dst}"
    )


def load(repo_or_dir: str, model: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Raises RuntimeError: jitgrad neither downloads nor runs other people's repositories."""
    name = re.sub(r"[^\w./:-]", "", str(repo_or_dir))
    raise RuntimeError(
        f"[hub.load] jitgrad downloads nothing; build {model} from its source and load its weights "
        f"with jitgrad.load(path) (asked for {name})"
    )


def __getattr__(name: str) -> Any:
    if name == "tqdm":  # PyTorch shows downloads by it, so that programs find it here
        from tqdm import tqdm

        return tqdm
    raise no_such(__name__, name)
