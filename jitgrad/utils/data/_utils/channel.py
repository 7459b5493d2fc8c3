"""Messages between a loader and its workers: objects whose large arrays travel in shared memory.

A message is a pickle with its arrays beside it (protocol 5, out of band). Arrays of LARGE bytes or
more are written into a file in memory each, whose descriptor goes over the socket, and which the
receiver maps and then holds no descriptor of; a batch's images are so not kept by its labels. The
small ones come in one piece and are copied. Each worker has a socket of its own: one that is killed
in the middle of a message leaves the others alone. Nothing has a name, so nothing is left behind.
"""

from __future__ import annotations

import array
import contextlib
import errno
import io
import os
import pickle
import select
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.multiprocessing.sharing import reduce_shared_tensor
from jitgrad.runtime import memory_file
from jitgrad.runtime.memory_file import Mapping
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor

LARGE = 1 << 14
INLINE = 1 << 13  # more than this does not go through the socket itself
MOST_FILES = 200  # a socket takes 253 descriptors at once
_HEAD = struct.Struct("<QI?")  # bytes of the body, its files, whether the body is the last of them
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_DESCRIPTOR = array.array("i").itemsize


class Closed(Exception):
    """The other side of a channel is gone."""


class _Pickler(pickle.Pickler):
    """Tensors that show a part of their memory only travel as copies of that part."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor) or type(obj).__reduce_ex__ is not Tensor.__reduce_ex__:
            return NotImplemented
        rebuild, (cls, storage, chain, requires_grad, extra) = reduce_shared_tensor(obj)
        data = obj._array("DataLoader worker")
        if data.nbytes < storage.nbytes():
            like = TensorType(obj._type.shape, obj._type.dtype)
            storage, chain = Storage(np.array(data, order="C"), like), ()
        return rebuild, (cls, storage, chain, requires_grad, extra)


def _dump(obj: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, 5, buffer_callback=buffers.append).dump(obj)
    return stream.getvalue(), buffers


class Message:
    """An object, ready to be sent: the bytes of the body and the files beside it."""

    def __init__(self, obj: Any) -> None:
        """Raises what pickling raises, RuntimeError where there is no room for shared memory."""
        text, buffers = _dump(obj)
        views = [b.raw() for b in buffers]
        large = [v for v in views if v.nbytes >= LARGE][:MOST_FILES]
        chosen = {id(v) for v in large}
        sizes = [v.nbytes if id(v) in chosen else -1 - v.nbytes for v in views]
        table = struct.pack(f"<I{len(sizes)}q", len(sizes), *sizes)
        body: list[Any] = [table, text, *(v for v in views if id(v) not in chosen)]
        self.nbytes = sum(len(part) for part in body)
        self.files: list[int] = []
        try:
            for view in large:
                self.files.append(memory_file.create_from([view]))
            self.inside = self.nbytes <= INLINE
            if not self.inside:
                self.files.append(memory_file.create_from(body))
        except BaseException:
            self.close()
            raise
        self.body = b"".join(body) if self.inside else b""

    def close(self) -> None:
        """Closes the files. They live on in the socket and with the receiver."""
        while self.files:
            os.close(self.files.pop())


def _load(body: memoryview, files: Sequence[int]) -> Any:
    """The object of a body and the files of its large arrays, which it takes over."""
    (count,) = struct.unpack_from("<I", body)
    sizes = struct.unpack_from(f"<{count}q", body, 4)
    begin = 4 + 8 * count
    small = sum(-1 - n for n in sizes if n < 0)
    text, rest = body[begin : len(body) - small], body[len(body) - small :]
    rest_files = iter(files)
    buffers: list[Any] = []
    try:
        for nbytes in sizes:
            if nbytes >= 0:
                buffers.append(Mapping(next(rest_files), nbytes).array())
            else:
                buffers.append(bytearray(rest[: -1 - nbytes]))
                rest = rest[-1 - nbytes :]
    finally:
        for fd in rest_files:
            os.close(fd)
    return pickle.loads(text, buffers=buffers)


_ours: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a socket that passes messages."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """The loader's end, and the socket of the worker's. A forked process closes the first, so
        that a worker sees when its loader is gone."""
        try:
            ours, theirs = socket.socketpair()
            for end in (ours, theirs):  # some systems' default is smaller than one message
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        except OSError as error:
            raise memory_file.explained(error, 0) from error
        channel = cls(ours)
        _ours.add(channel)
        return channel, theirs

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Sends and closes a message. Raises Closed where nobody receives."""
        parts = [_HEAD.pack(message.nbytes, len(message.files), not message.inside), message.body]
        rights = []
        if message.files:
            fds = array.array("i", message.files)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        try:
            while True:
                try:
                    sent = self.socket.sendmsg(parts, rights)
                    break
                except OSError as error:
                    if error.errno != errno.ETOOMANYREFS:
                        raise
                    time.sleep(0.01)  # until the loader has taken some of what is under way
            rest = b"".join(parts)[sent:]
            if rest:
                self.socket.sendall(rest)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error
        finally:
            message.close()

    def receive(self) -> Any:
        """The next object. Raises Closed at the end, RuntimeError where descriptors ran out."""
        fds = array.array("i")
        head = b""
        while len(head) < _HEAD.size:
            room = socket.CMSG_SPACE((MOST_FILES + 1) * _DESCRIPTOR) if not head else 0
            try:
                data, rights, _, _ = self.socket.recvmsg(_HEAD.size - len(head), room, _CLOEXEC)
            except ConnectionResetError as error:
                raise Closed from error
            for level, kind, raw in rights:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(raw[: len(raw) - len(raw) % _DESCRIPTOR])
            if not data:
                raise Closed
            head += data
        nbytes, count, outside = _HEAD.unpack(head)
        files = list(fds)
        try:
            if len(files) < count:
                limit = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                raise memory_file.explained(limit, nbytes)
            if outside:
                body = Mapping(files.pop(), nbytes).array().data
            else:
                body = memoryview(self._exactly(nbytes))
            taken, files = files, []
            return _load(body, taken)
        finally:
            for fd in files:
                os.close(fd)

    def _exactly(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view = memoryview(data)
        while view:
            got = self.socket.recv_into(view)
            if not got:
                raise Closed
            view = view[got:]
        return data

    def ready(self, seconds: float = 0) -> bool:
        """Whether something can be received (or the other side is gone), within `seconds`."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def shut(self) -> None:
        """Tells the other side that this is the end, whoever else holds this end."""
        with contextlib.suppress(OSError):  # where the other side is gone
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _after_fork_in_child() -> None:
    for channel in list(_ours):
        channel.socket.close()
    _ours.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
