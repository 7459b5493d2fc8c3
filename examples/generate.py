"""A small GPT that writes text from C: train it, export one step of its decoder, run that.

    python examples/generate.py            # some seconds
    python examples/generate.py --steps 500

1. Trains a transformer with a vocabulary of bytes on a text (default: Python's "this").
2. Exports `step(token) -> logits`, with the cache of keys and values and the position as the
   library's own state: examples/out/libgpt.so, .h.
3. Builds generate.c and lets it continue a prompt. The text must be what Python writes, token for
   token, where each token is computed from the whole text before it, without a cache.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.compiler.picture import readable_bytes
from jitgrad.exported import Exported

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
VOCABULARY = 128  # ASCII


class Block(nn.Module):
    """Attention to what came before, then a perceptron; both added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def heads_of(self, x: jg.Tensor) -> list[jg.Tensor]:
        """Queries, keys, values, each (heads, T, width / heads), of x (T, width)."""
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        return [p.unflatten(-1, (self.heads, -1)).transpose(0, 1) for p in parts]

    def finish(self, x: jg.Tensor, attended: jg.Tensor) -> jg.Tensor:
        x = x + self.out(attended.transpose(0, 1).flatten(1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens (T,) int64 -> logits (T, vocabulary). `step` takes one token, and keeps the rest."""

    def __init__(self, context: int = 64, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.context = context
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        cache = jg.zeros(2, layers, heads, context, width // heads)
        self.register_buffer("cache", cache, persistent=False)
        self.register_buffer("position", jg.zeros((), dtype=jg.int64), persistent=False)

    def forward(self, tokens: jg.Tensor) -> jg.Tensor:
        x = self.token(tokens) + self.place.weight[: tokens.shape[-1]]
        for block in self.blocks:
            q, k, v = block.heads_of(x)
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(self.norm(x))

    def step(self, token: jg.Tensor) -> jg.Tensor:
        """The logits (vocabulary,) after one more token (1,). Raises RuntimeError when the context
        is full."""
        x = self.token(token) + self.place(self.position.reshape(1))
        seen = jg.arange(self.context) <= self.position
        for n, block in enumerate(self.blocks):
            q, k, v = block.heads_of(x)
            keys, values = self.cache[0, n], self.cache[1, n]
            keys.index_copy_(1, self.position.reshape(1), k)
            values.index_copy_(1, self.position.reshape(1), v)
            x = block.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=seen))
        self.position += 1
        return self.head(self.norm(x))[0]


def text_of_this() -> str:
    with contextlib.redirect_stdout(io.StringIO()):
        import this  # noqa: F401
    return codecs.decode(sys.modules["this"].s, "rot13")


def train(model: GPT, text: str, steps: int) -> float:
    """Trains on pieces of the text; returns the last loss."""
    data = jg.tensor([min(b, VOCABULARY - 1) for b in text.encode()])
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)

    @jg.jit(fallback="error")
    def step(tokens: jg.Tensor) -> jg.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:-1]), tokens[1:])
        loss.backward()
        optimizer.step()
        return loss

    starts = jg.randint(0, len(data) - model.context - 1, (steps,)).tolist()
    return [step(data[k : k + model.context + 1]).item() for k in starts][-1]


def export(model: GPT) -> Exported:
    """One step of the decoder, from an empty cache."""
    model.eval().requires_grad_(False)
    model.cache.zero_()
    model.position.zero_()

    def step(token: jg.Tensor) -> jg.Tensor:
        return model.step(token)

    return jg.export(step, jg.tensor([0]), output_names=["logits"])


def continued(model: GPT, prompt: str, count: int) -> str:
    """What the model writes, each token the likeliest, computed from the whole text before it."""
    tokens = list(prompt.encode())
    with jg.no_grad():
        for _ in range(count):
            tokens.append(int(model(jg.tensor(tokens))[-1].argmax()))
    return bytes(tokens).decode()


def build(folder: Path) -> Path | None:
    """The program, linked with folder/libgpt.so; None without a C compiler."""
    cc = shutil.which("cc")
    if cc is None:
        return None
    program = folder / "generate"
    command = [cc, "-O2", "-Wall", "-Wextra", "-Werror", "-I", str(folder)]
    command += [str(HERE / "generate.c"), str(folder / "libgpt.so"), "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--prompt", default="Simple is ")
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    jg.manual_seed(0)
    model = GPT()
    print(f"trained for {given.steps} steps: loss {train(model, text_of_this(), given.steps):.3f}")
    library = export(model).native(OUT / "libgpt.so").library
    assert library is not None
    weights = sum(p.numel() * 4 for p in model.parameters())
    print(
        f"exported: examples/out/libgpt.so, {readable_bytes(library.stat().st_size)}, of which "
        f"{readable_bytes(weights)} are parameters"
    )
    program = build(OUT)
    if program is None:
        print("(no C compiler here: generate.c not tried)")
        return 0
    count = model.context - len(given.prompt)
    command = [str(program), given.prompt, str(count)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(f"C wrote: {said!r}")
    same = said == continued(model, given.prompt, count)
    print("which is what Python writes" if same else "which is NOT what Python writes")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
