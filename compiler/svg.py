"""Svg: the few SVG elements that pictures need, written as text. No layout, no colours of meaning.

Coordinates are pixels, from the top left. Text is escaped here and nowhere else; widths of text
are estimated, since there is no font to measure with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
CHAR = 0.602  # width of a character of a monospaced font, over its size


def text_width(text: str, size: float) -> float:
    """About how wide `text` is in the pictures' font."""
    return len(text) * size * CHAR


def shorten(text: str, width: float, size: float) -> str:
    """`text`, cut with an ellipsis to fit into `width`; "" where not even that fits."""
    room = int(width / (size * CHAR))
    if len(text) <= room:
        return text
    return text[: room - 1] + "…" if room >= 3 else ""


def _number(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


class Svg:
    """A drawing. Elements appear in the order of the calls, later ones on top.

    `str(svg)` is the file: a standalone SVG document that browsers and editors open.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none",
        stroke: str = "none", radius: float = 0, dash: str = "",
    ) -> None:  # fmt: skip
        more = f' rx="{_number(radius)}"' if radius else ""
        more += f' stroke="{stroke}"' if stroke != "none" else ""
        more += f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}" fill="{fill}"{more}/>'
        )

    def text(
        self, x: float, y: float, text: str, size: float = 11, fill: str = "#24292f",
        anchor: str = "start", weight: str = "",
    ) -> None:  # fmt: skip
        """`y` is the baseline; anchor: start, middle, end."""
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += f' font-weight="{weight}"' if weight else ""
        self.parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" '
            f'fill="{fill}"{more}>{escape(text, quote=False)}</text>'
        )

    def line(
        self, x0: float, y0: float, x1: float, y1: float, stroke: str = "#8c959f",
        width: float = 1, dash: str = "",
    ) -> None:  # fmt: skip
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{_number(x0)}" y1="{_number(y0)}" x2="{_number(x1)}" y2="{_number(y1)}" '
            f'stroke="{stroke}" stroke-width="{_number(width)}"{more}/>'
        )

    def curve(self, x0: float, y0: float, x1: float, y1: float, stroke: str) -> None:
        """A curve that leaves (x0, y0) and reaches (x1, y1) vertically, with an arrow head."""
        bend = max(12.0, (y1 - y0) / 2)
        self.parts.append(
            f'<path d="M{_number(x0)} {_number(y0)}C{_number(x0)} {_number(y0 + bend)} '
            f'{_number(x1)} {_number(y1 - bend)} {_number(x1)} {_number(y1)}" fill="none" '
            f'stroke="{stroke}" marker-end="url(#arrow)"/>'
        )

    @contextmanager
    def group(self, tooltip: str) -> Iterator[None]:
        """Elements that show `tooltip` under the pointer."""
        self.parts.append(f"<g><title>{escape(tooltip, quote=False)}</title>")
        yield
        self.parts.append("</g>")

    def __str__(self) -> str:
        w, h = _number(self.width), _number(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" '
                f'viewBox="0 0 {w} {h}" font-family="{FONT}">',
                f"<title>{escape(self.title, quote=False)}</title>",
                '<defs><marker id="arrow" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" '
                'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="#8c959f"/>'
                "</marker></defs>",
                f'<rect width="{w}" height="{h}" fill="#ffffff"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )
