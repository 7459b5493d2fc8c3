"""torch.cuda.Stream, Event and the current stream.

Work on one stream runs in order; streams run beside each other. Tensors are allocated for the
stream that is current; `Tensor.record_stream` tells of another that uses one.
"""

from __future__ import annotations

import weakref
from typing import Any

from jitgrad.cuda.memory import index_of
from jitgrad.device import device as Device
from jitgrad.runtime import cuda
from jitgrad.runtime.userline import with_line


class Stream:
    """A queue of work on a device. Raises RuntimeError where there is none.

    priority: below 0 is more urgent.
    """

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
        self.device_index = index_of(device)
        there = cuda.device.device(self.device_index, "cuda.Stream")
        self._driver = there.driver
        given = more.get("handle")
        self.cuda_stream: int = there.new_stream(priority) if given is None else given
        if given is None:
            weakref.finalize(self, there.release_stream, self.cuda_stream, priority).atexit = False

    @property
    def device(self) -> Device:
        """The device that the stream is of."""
        return Device("cuda", self.device_index)

    @property
    def priority(self) -> int:
        """The priority that the stream was made with; 0 for the default stream and others'."""
        return cuda.device.device(self.device_index).priority_of(self.cuda_stream)

    @property
    def stream_id(self) -> int:
        """A number that is the stream's alone on its device: the driver's handle."""
        return self.cuda_stream

    def synchronize(self) -> None:
        """Waits for all work on the stream. Raises RuntimeError while work is captured."""
        self._expect_no_capture("Stream.synchronize")
        self._driver.synchronize_stream(self.device_index, self.cuda_stream)

    def query(self) -> bool:
        """Whether all work on the stream is done. Raises RuntimeError while work is captured."""
        self._expect_no_capture("Stream.query")
        return self._driver.stream_done(self.device_index, self.cuda_stream)

    def _expect_no_capture(self, what: str) -> None:
        graph = cuda.capture.current(self.device_index)
        if graph is not None and graph.stream == self.cuda_stream:
            cuda.capture.refuse_wait(self.device_index, what)

    def wait_event(self, event: Event) -> None:
        """What comes on this stream later waits for the event."""
        event._wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """What comes on this stream later waits for what the other has now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Marks the end of the work that the stream has now."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        cuda.capture.refuse_stream(self.device_index, self.cuda_stream)
        cuda.device.enter_stream(self.device_index, self.cuda_stream)
        return self

    def __exit__(self, *_: Any) -> None:
        cuda.device.leave_stream(self.device_index)

    def __eq__(self, other: object) -> bool:
        mine = (self.device_index, self.cuda_stream)
        return isinstance(other, Stream) and mine == (other.device_index, other.cuda_stream)

    def __hash__(self) -> int:
        return hash((self.device_index, self.cuda_stream))

    def __repr__(self) -> str:
        return f"<Stream device=cuda:{self.device_index} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream of another library, by the driver's handle. Its owner keeps it."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        super().__init__(device, handle=stream_ptr)


class Event:
    """A mark in a stream. enable_timing: `elapsed_time` may be asked."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        cuda.device.require("cuda.Event")
        self._timing = enable_timing
        self._event: int | None = None
        self._graph: cuda.capture.Capture | None = None  # in which the mark is
        self.device_index = -1

    @property
    def device(self) -> Device | None:
        """The device on which the event was recorded; None before."""
        return None if self._event is None else Device("cuda", self.device_index)

    @property
    def cuda_event(self) -> int:
        """The driver's handle; 0 before the event is recorded."""
        return self._event or 0

    def ipc_handle(self) -> bytes:
        """Raises RuntimeError: nothing is shared with other processes."""
        raise RuntimeError(
            "[cuda.Event.ipc_handle] expected an event of this process; events and memory of a GPU "
            "are not shared with other processes; synchronize the event before you tell of it"
        )

    def record(self, stream: Stream | None = None) -> None:
        """Marks the end of a stream's work (the current stream's if None). Raises RuntimeError for
        another device's stream than before."""
        stream = current_stream() if stream is None else stream
        there = cuda.device.device(stream.device_index)
        if self._event is not None and self.device_index != stream.device_index:
            raise RuntimeError(
                f"[cuda.Event.record] Event device cuda:{self.device_index} does not match "
                f"recording stream's device cuda:{stream.device_index}; make an event for each"
            )
        if self._event is None:
            self.device_index = stream.device_index
            self._event = there.driver.new_event(self.device_index, self._timing)
        there.driver.record(self.device_index, self._event, stream.cuda_stream)
        graph = cuda.capture.current(self.device_index)
        self._graph = graph if graph is not None and graph.stream == stream.cuda_stream else None

    def _expect_no_capture(self, what: str) -> None:
        """The mark is not in a graph: there it is passed at each replay, of which nobody tells."""
        if self._graph is not None:
            raise with_line(
                RuntimeError(
                    f"[cuda.{what}] expected an event that was recorded outside of a capture "
                    "(cuda.graph): captured work runs when the graph is replayed"
                )
            )

    def _wait(self, stream: Stream) -> None:
        if self._event is not None:
            graph = cuda.capture.current(stream.device_index)
            inside = graph is not None and graph.stream == stream.cuda_stream
            if inside and self._graph is graph:
                return  # the work of one stream is done in order
            self._expect_no_capture("Event.wait")
            if inside:
                cuda.capture.refuse(
                    stream.device_index, "a wait for an event of other work", "wait before"
                )
            driver = cuda.device.device(stream.device_index).driver
            driver.wait(stream.device_index, stream.cuda_stream, self._event)

    def wait(self, stream: Stream | None = None) -> None:
        """What comes on a stream later waits for this event."""
        self._wait(current_stream() if stream is None else stream)

    def query(self) -> bool:
        """Whether the work before the mark is done."""
        self._expect_no_capture("Event.query")
        if self._event is None:
            return True
        driver = cuda.device.device(self.device_index).driver
        return bool(driver.event_done(self.device_index, self._event))

    def synchronize(self) -> None:
        """Waits for the work before the mark."""
        self._expect_no_capture("Event.synchronize")
        if self._event is not None:
            driver = cuda.device.device(self.device_index).driver
            driver.synchronize_event(self.device_index, self._event)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another. Raises RuntimeError where one has no time."""
        for event in (self, end_event):
            event._expect_no_capture("Event.elapsed_time")
        if self._event is None or end_event._event is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self._timing and end_event._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.device_index != end_event.device_index:
            raise RuntimeError(
                f"[cuda.Event.elapsed_time] expected events of one device; got cuda:"
                f"{self.device_index} and cuda:{end_event.device_index}"
            )
        driver = cuda.device.device(self.device_index).driver
        return driver.elapsed(self.device_index, self._event, end_event._event)


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work on a device goes to."""
    index = index_of(device)
    cuda.device.device(index, "cuda.current_stream")
    return Stream(index, handle=cuda.device.current_stream(index))


def default_stream(device: Any = None) -> Stream:
    """The device's default stream."""
    index = index_of(device)
    cuda.device.device(index, "cuda.default_stream")
    return Stream(index, handle=0)


def set_stream(stream: Stream) -> None:
    """This thread's work goes to the stream from here on; its device becomes the current one."""
    cuda.capture.refuse_stream(stream.device_index, stream.cuda_stream)
    cuda.device.set_current(stream.device_index)
    cuda.device.set_stream(stream.device_index, stream.cuda_stream)


class StreamContext:
    """Within it, work goes to a stream, and its device is the current one; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


def stream(stream: Any) -> StreamContext:
    """A context within which work goes to a stream, and its device is the current one; None changes
    nothing."""
    return StreamContext(stream)


EFFECTS: tuple[Any, ...] = (
    Stream.synchronize, Stream.query, Event.record, Event._wait, Event.query, Event.synchronize,
    Event.elapsed_time, current_stream, set_stream,
)  # fmt: skip
"""What waits, marks, or tells what is not so at each call: compiled code does none of it."""
