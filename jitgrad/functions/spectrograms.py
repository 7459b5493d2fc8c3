"""Short-time Fourier transforms: stft and istft, of frames of a signal times a window."""

from __future__ import annotations

from jitgrad.compiler.ops.record import OPS
from jitgrad.creation import arange, ones
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_range
from jitgrad.functions.complex_numbers import view_as_real
from jitgrad.functions.fourier import fft, ifft, irfft, rfft
from jitgrad.nn.functional.padding import pad
from jitgrad.promotion import cast
from jitgrad.tensor import Tensor


def _expect(name: str, ok: bool, message: str) -> None:
    if not ok:
        raise RuntimeError(f"{name}: {message}")


def _window(
    name: str, x: Tensor, window: Tensor | None, n_fft: int, hop: int | None, length: int | None
) -> tuple[Tensor, int]:
    """The window, with zeros on both sides to n_fft, and the hop."""
    hop = n_fft // 4 if hop is None else hop
    length = n_fft if length is None else length
    _expect(name, hop > 0, f"expected hop_length > 0, but got hop_length={hop}")
    _expect(
        name,
        0 < length <= n_fft,
        f"expected 0 < win_length <= n_fft, but got win_length={length} and n_fft={n_fft}",
    )
    if window is None:
        window = ones(length, dtype=x.dtype.to_real())
    _expect(
        name,
        tuple(window.shape) == (length,),
        f"expected a 1D window tensor of size equal to win_length={length}; got {window._type}",
    )
    left = (n_fft - length) // 2
    return pad(window, (left, n_fft - length - left)), hop


def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, pad_mode: str = "reflect",
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """The Fourier transforms of windows of a signal (L,) or (B, L): (B?, F, T), complex.

    Frames of n_fft points are hop_length (n_fft // 4) apart; center: frame t is around the point
    t hop_length, the signal padded by pad_mode on both sides. onesided (for real signals the
    default): F = n_fft // 2 + 1, else n_fft. normalized: divided by sqrt(n_fft). return_complex
    False gives parts in a last dim of 2. Raises RuntimeError for arguments that do not fit.
    """
    if center and align_to_window is not None:
        raise RuntimeError("stft align_to_window should only be set when center = false")
    whole = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None:
        _expect(
            "stft",
            whole,
            "requires the return_complex parameter be given for real inputs; pass True",
        )
        return_complex = True
    _expect(
        "stft",
        input.dtype.is_floating_point or input.dtype.is_complex,
        f"expected a tensor of floating point or complex values; got {input._type}",
    )
    _expect("stft", input.ndim in (1, 2), f"expected a 1D or 2D tensor; got {input._type}")
    onesided = not whole if onesided is None else onesided
    _expect(
        "stft",
        not (whole and onesided),
        "Cannot have onesided output if window or input is complex",
    )
    x = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        x = pad(x.unsqueeze(0), (n_fft // 2, n_fft // 2), pad_mode).squeeze(0)
    size = int(x._type.shape[1])
    _expect("stft", 0 < n_fft <= size, f"expected 0 < n_fft <= {size}, but got n_fft={n_fft}")
    weights, hop = _window("stft", x, window, n_fft, hop_length, win_length)
    if align_to_window:
        lead = (n_fft - (n_fft if win_length is None else win_length)) // 2
        x = x.narrow(1, 0, size) if not lead else pad(x, (lead, n_fft - lead))
    frames = x.unfold(1, n_fft, hop) * weights
    norm = "ortho" if normalized else None
    out = (rfft if onesided else fft)(frames, None, -1, norm).mT
    out = out if input.ndim == 2 else out.squeeze(0)
    return out if return_complex else view_as_real(out)


def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, normalized: bool = False,
    onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The signal of which `input` (B?, F, T) is the stft: the least squares estimate (Griffin and
    Lim, 1984), the overlapping frames times the window, over the sum of the squared windows.

    length: of the result, cut or padded with zeros. Raises RuntimeError where that sum is 0
    somewhere.
    """
    _expect(
        "istft",
        input.dtype.is_complex,
        "requires a complex-valued input tensor matching the output from stft with "
        f"return_complex=True; got {input._type}",
    )
    _expect("istft", input.ndim in (2, 3), f"expected a tensor with 2 or 3 dims; got {input._type}")
    _expect("istft", input.numel() > 0, f"input tensor cannot be empty; got {input._type}")
    x = input if input.ndim == 3 else input.unsqueeze(0)
    count, points = int(x._type.shape[2]), int(x._type.shape[1])
    onesided = points != n_fft if onesided is None else onesided
    wanted = n_fft // 2 + 1 if onesided else n_fft
    _expect(
        "istft",
        points == wanted,
        "expected the frequency dimension (3rd to the last) of the input tensor to match n_fft / 2 "
        f"+ 1 when onesided=True, n_fft otherwise, {wanted}; got {input._type}",
    )
    _expect(
        "istft",
        not (onesided and return_complex),
        "cannot have onesided input and return_complex=True",
    )
    weights, hop = _window("istft", x, window, n_fft, hop_length, win_length)
    _expect("istft", hop <= n_fft, f"expected hop_length <= win_length; got {hop} and {n_fft}")
    norm = "ortho" if normalized else None
    frames = irfft(x.mT, n_fft, -1, norm) if onesided else ifft(x.mT, None, -1, norm)
    if not return_complex and frames.dtype.is_complex:
        frames = frames.real
    size = n_fft + hop * (count - 1)
    signal = _overlapped(frames * weights, hop, size)
    square = (weights * weights).expand(1, count, n_fft)
    total = _overlapped(square, hop, size)
    start = n_fft // 2 if center else 0
    stop = start + length if length is not None else size - start
    kept = min(stop, size)
    signal = signal.narrow(1, start, kept - start)
    total = total.narrow(1, start, kept - start)
    text = "istft: window overlap add min: {value}; expected a window that covers every point"
    size_of = total.abs() if total.dtype.is_complex else total
    safe = expect_range(size_of.detach(), 1e-11, None, RuntimeError, text)
    total = total + (safe - size_of.detach())  # what is checked is what is read
    out = signal / cast(total, signal.dtype)
    if stop > kept:
        out = pad(out, (0, stop - kept))
    return out if input.ndim == 3 else out.squeeze(0)


def _overlapped(frames: Tensor, hop: int, size: int) -> Tensor:
    """Frames (B, T, n) added up, each `hop` after the one before: (B, size)."""
    count, n = int(frames._type.shape[1]), int(frames._type.shape[2])
    places = (arange(count).unsqueeze(1) * hop + arange(n)).reshape(1, count * n)
    flat = frames.reshape(frames._type.shape[0], count * n)
    base = flat.new_zeros((flat._type.shape[0], size))
    return apply(OPS["scatter_add"], (base, places.expand(flat._type.shape), flat), {"axis": 1})
