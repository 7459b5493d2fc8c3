"""torch.utils.tensorboard.SummaryWriter, over the tensorboard package where it is installed."""

from __future__ import annotations

import os
import struct
import time
import zlib
from datetime import datetime
from typing import Any

import numpy as np

from jitgrad.missing import missing
from jitgrad.tensor import Tensor


def _protocol() -> tuple[Any, Any]:
    """tensorboard's writer of event files and its messages."""
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ImportError(
            "[SummaryWriter] expected the package tensorboard; it is not installed: pip install "
            "tensorboard"
        ) from error
    messages = {
        **vars(event_pb2), **vars(summary_pb2), **vars(tensor_pb2), **vars(tensor_shape_pb2)
    }  # fmt: skip
    return EventFileWriter, messages


def _array(x: Any) -> np.ndarray[Any, Any]:
    return x.detach().float().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _png(image: np.ndarray[Any, Any]) -> bytes:
    """An image (H, W, 1, 3 or 4) of uint8 as PNG (RFC 2083): one zlib stream, no filters."""
    height, width, channels = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    color = {1: 0, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


class SummaryWriter:
    """Writes scalars, histograms, images and text as events that TensorBoard shows.

    Default log_dir: runs/<time>_<comment>. Raises ImportError where tensorboard is not installed.
    """

    def __init__(
        self, log_dir: Any = None, comment: str = "", purge_step: Any = None, max_queue: int = 10,
        flush_secs: int = 120, filename_suffix: str = "",
    ) -> None:  # fmt: skip
        make, self._messages = _protocol()
        if not log_dir:
            log_dir = os.path.join("runs", datetime.now().strftime("%b%d_%H-%M-%S") + comment)
        self.log_dir = str(log_dir)
        self._args = (max_queue, flush_secs, filename_suffix)
        self._make = make
        self._writers = {self.log_dir: make(self.log_dir, *self._args)}

    def get_logdir(self) -> str:
        """The folder of the event file."""
        return self.log_dir

    def _write(self, summary: Any, step: Any, walltime: Any, folder: str | None = None) -> None:
        folder = folder or self.log_dir
        if folder not in self._writers:
            self._writers[folder] = self._make(folder, *self._args)
        event = self._messages["Event"](
            wall_time=time.time() if walltime is None else walltime, summary=summary
        )
        if step is not None:
            event.step = int(step)
        self._writers[folder].add_event(event)

    def _summary(self, tag: str, **value: Any) -> Any:
        make = self._messages["Summary"]
        return make(value=[make.Value(tag=tag, **value)])

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: Any = None, walltime: Any = None,
        new_style: bool = False, double_precision: bool = False,
    ) -> None:  # fmt: skip
        """A number at a step."""
        number = float(_array(scalar_value).reshape(()))
        self._write(self._summary(tag, simple_value=number), global_step, walltime)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: Any = None,
        walltime: Any = None,
    ) -> None:  # fmt: skip
        """Several numbers for one chart; each goes into an event file of its own."""
        for tag, value in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, f"{main_tag.replace('/', '_')}_{tag}")
            number = float(_array(value).reshape(()))
            self._write(self._summary(main_tag, simple_value=number), global_step, walltime, folder)

    def add_histogram(
        self, tag: str, values: Any, global_step: Any = None, bins: Any = 30, walltime: Any = None,
        max_bins: Any = None,
    ) -> None:  # fmt: skip
        """The distribution of values, in `bins` bins of equal width."""
        flat = _array(values).astype(np.float64).reshape(-1)
        if not flat.size:
            raise ValueError("The input has no element.")
        counts, edges = np.histogram(flat, 30 if isinstance(bins, str) else bins)
        histogram = self._messages["HistogramProto"](
            min=flat.min(), max=flat.max(), num=flat.size, sum=flat.sum(),
            sum_squares=float(flat @ flat), bucket_limit=edges[1:].tolist(),
            bucket=counts.astype(np.float64).tolist(),
        )  # fmt: skip
        self._write(self._summary(tag, histo=histogram), global_step, walltime)

    def add_image(
        self, tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None,
        dataformats: str = "CHW",
    ) -> None:  # fmt: skip
        """An image: floats in [0, 1] or uint8, of 1, 3 or 4 channels; CHW, HWC or HW.

        Raises ValueError for another format.
        """
        if sorted(dataformats) not in (sorted("CHW"), sorted("HW")):
            raise ValueError(f"[add_image] expected dataformats CHW, HWC or HW; got {dataformats}")
        image = _array(img_tensor)
        is_bytes = isinstance(img_tensor, Tensor) and not img_tensor.is_floating_point()
        scale = 1 if is_bytes or image.dtype == np.uint8 else 255
        image = (image * scale).clip(0, 255).astype(np.uint8)
        image = image[..., None] if "C" not in dataformats else np.moveaxis(
            image, [dataformats.index(c) for c in "HWC"], [0, 1, 2]
        )  # fmt: skip
        if "C" not in dataformats and dataformats == "WH":
            image = image.swapaxes(0, 1)
        height, width, channels = image.shape
        encoded = self._messages["Summary"].Image(
            height=height, width=width, colorspace=channels, encoded_image_string=_png(image)
        )
        self._write(self._summary(tag, image=encoded), global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: Any = None, walltime: Any = None
    ) -> None:
        """Text, shown as Markdown."""
        m = self._messages
        data = m["SummaryMetadata"].PluginData(plugin_name="text")
        shape = m["TensorShapeProto"](dim=[m["TensorShapeProto"].Dim(size=1)])
        tensor = m["TensorProto"](
            dtype="DT_STRING", string_val=[text_string.encode()], tensor_shape=shape
        )
        metadata = m["SummaryMetadata"](plugin_data=data)
        summary = self._summary(f"{tag}/text_summary", metadata=metadata, tensor=tensor)
        self._write(summary, global_step, walltime)

    def flush(self) -> None:
        """Writes what waits to the file."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Writes what waits and closes the files."""
        for writer in self._writers.values():
            writer.close()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


__getattr__ = missing(__name__)
