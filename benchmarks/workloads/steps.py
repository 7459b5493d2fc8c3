"""Training steps: MLP, CNN, ResNet-18, GPT, LSTM. Forward, backward and update."""

from __future__ import annotations

import random

from workloads.common import FILL, WEIGHTS, Workload, odd, training

_LABELS = """
y_ = np.random.default_rng(1).integers(0, CLASSES, ROWS)
x_ = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
"""

# JAX: parameters in the order of PyTorch's model.parameters(); updates written by hand.
_JAX = """
def cross_entropy(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()
def trainer(loss, update, state):
    value = jax.value_and_grad(loss)
    def one(params, state, x, y):
        l, g = value(params, x, y)
        params, state = update(params, g, state)
        return l, params, state
    one = jax.jit(one, donate_argnums=(0, 1))
    held = [params, state]
    x, y = jnp.asarray(x_), jnp.asarray(y_)
    def train():
        l, held[0], held[1] = one(*held, x, y)
        return l
    return train
def adam(lr, decay=0.0):
    def update(ps, gs, state):
        ms, vs, t = state
        t = t + 1
        ms = [0.9 * m + 0.1 * g for m, g in zip(ms, gs)]
        vs = [0.999 * v + 0.001 * g * g for v, g in zip(vs, gs)]
        new = [p * (1 - lr * decay) - lr * (m / (1 - 0.9 ** t))
               / (jnp.sqrt(v / (1 - 0.999 ** t)) + 1e-8) for p, m, v in zip(ps, ms, vs)]
        return new, (ms, vs, t)
    zeros = lambda: [jnp.zeros_like(p) for p in params]
    return update, (zeros(), zeros(), jnp.float32(0))
def sgd(lr, momentum=0.0, decay=0.0):
    def update(ps, gs, state):
        gs = [g + decay * p for g, p in zip(gs, ps)] if decay else gs
        state = [momentum * s + g for s, g in zip(state, gs)] if momentum else state
        return [p - lr * d for p, d in zip(ps, state if momentum else gs)], state
    return update, [jnp.zeros_like(p) for p in params] if momentum else []
"""


def _data(shape: tuple[int, ...], classes: int, rows: int) -> str:
    text = _LABELS.replace("CLASSES", str(classes)).replace("ROWS", str(rows))
    return text.replace("SHAPE", repr(shape))


_TENSORS = "\nx, y = torch.from_numpy(x_), torch.from_numpy(y_)\n"
_LOSS = "\ndef loss_of():\n    return F.cross_entropy(model(x), y)\n"


def mlp(sizes: tuple[int, ...] = (784, 512, 256, 10), batch: int = 128) -> Workload:
    """Linear layers with ReLU, Adam."""
    data = _data((batch, sizes[0]), sizes[-1], batch)
    pairs = list(zip(sizes, sizes[1:], strict=False))
    layers = ", nn.ReLU(), ".join(f"nn.Linear({a}, {b})" for a, b in pairs)
    torch = (
        data + FILL + f"\nmodel = fill(nn.Sequential({layers}))\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n" + _TENSORS + _LOSS
    )  # fmt: skip
    shapes = ", ".join(f"({b}, {a}), ({b},)" for a, b in pairs)
    jax = (
        data + WEIGHTS + _JAX
        + f"""
params = [jnp.asarray(w) for w in weights({shapes})]
def loss(ps, x, y):
    for k in range(0, len(ps), 2):
        x = x @ ps[k].T + ps[k + 1]
        x = jax.nn.relu(x) if k < len(ps) - 2 else x
    return cross_entropy(x, y)
train = trainer(loss, *adam(1e-3))
"""
    )  # fmt: skip
    tiny = (
        data + WEIGHTS
        + f"""
params = [Tensor(w).realize() for w in weights({shapes})]
for p in params:
    p.requires_grad = True
optimizer = nn.optim.Adam(params, lr=1e-3)
x, y = Tensor(x_).realize(), Tensor(y_).realize()
@TinyJit
def train():
    with Context(TRAINING=1):
        optimizer.zero_grad()
        h = x
        for k in range(0, len(params), 2):
            h = h @ params[k].T + params[k + 1]
            h = h.relu() if k < len(params) - 2 else h
        loss = h.sparse_categorical_crossentropy(y)
        loss.backward()
        return loss.realize(*optimizer.schedule_step())
"""
    )  # fmt: skip
    name = f"MLP {'-'.join(map(str, sizes))}, batch {batch}, Adam"
    return Workload(name, "step", training(torch, jax, tiny))


_CNN = """
model = fill(nn.Sequential(
    nn.Conv2d(1, C1, 3, padding=1), nn.ReLU(), nn.Conv2d(C1, C2, 3, padding=1), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(C2 * HALF * HALF, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
_CNN_JAX = """
params = [jnp.asarray(w) for w in weights(
    (C1, 1, 3, 3), (C1,), (C2, C1, 3, 3), (C2,), (10, C2 * HALF * HALF), (10,))]
def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)),
                                    dimension_numbers=("NCHW", "OIHW", "NCHW"))
def loss(ps, x, y):
    w1, b1, w2, b2, w3, b3 = ps
    x = jax.nn.relu(conv(x, w1) + b1[:, None, None])
    x = jax.nn.relu(conv(x, w2) + b2[:, None, None])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return cross_entropy(x.reshape(x.shape[0], -1) @ w3.T + b3, y)
train = trainer(loss, *sgd(0.01))
"""


def cnn(c1: int = 32, c2: int = 64, batch: int = 64, size: int = 28) -> Workload:
    """Two convolutions, a pool, a linear layer, SGD."""
    data = _data((batch, 1, size, size), 10, batch)

    def sized(text: str) -> str:
        for name, n in (("C1", c1), ("C2", c2), ("HALF", size // 2)):
            text = text.replace(name, str(n))
        return text

    torch = data + FILL + sized(_CNN) + _TENSORS + _LOSS
    jax = data + WEIGHTS + _JAX + sized(_CNN_JAX)
    name = f"CNN {c1}-{c2}, batch {batch}, {size} x {size}, SGD"
    return Workload(name, "step", training(torch, jax), rtol=5e-3)


RESNET = """
class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Identity() if stride == 1 and cin == cout else nn.Sequential(
            nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.down(x))
blocks, cin = [], 64
for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
    blocks += [Block(cin, cout, stride), Block(cout, cout, 1)]
    cin = cout
model = fill(nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
    nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)))
"""
RESNET_JAX = """
plan = [(64, 1, 64), (64, 1, 64), (128, 2, 64), (128, 1, 128), (256, 2, 128), (256, 1, 256),
        (512, 2, 256), (512, 1, 512)]
shapes = [(64, 3, 7, 7), (64,), (64,)]
for cout, stride, cin in plan:
    shapes += [(cout, cin, 3, 3), (cout,), (cout,), (cout, cout, 3, 3), (cout,), (cout,)]
    if stride == 2:
        shapes += [(cout, cin, 1, 1), (cout,), (cout,)]
shapes += [(1000, 512), (1000,)]
params = [jnp.asarray(w) for w in weights(*shapes)]
def conv(x, w, stride, pad):
    return lax.conv_general_dilated(x, w, (stride, stride), ((pad, pad), (pad, pad)),
                                    dimension_numbers=("NCHW", "OIHW", "NCHW"))
def norm(x, w, b):
    if not TRAIN:
        return x * (w / np.float32(1 + 1e-5) ** 0.5)[:, None, None] + b[:, None, None]
    m = x.mean((0, 2, 3), keepdims=True)
    v = x.var((0, 2, 3), keepdims=True)
    return (x - m) * lax.rsqrt(v + 1e-5) * w[:, None, None] + b[:, None, None]
def logits(ps, x):
    it = iter(ps)
    relu = jax.nn.relu
    x = relu(norm(conv(x, next(it), 2, 3), next(it), next(it)))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2),
                          ((0, 0), (0, 0), (1, 1), (1, 1)))
    for cout, stride, cin in plan:
        out = relu(norm(conv(x, next(it), stride, 1), next(it), next(it)))
        out = norm(conv(out, next(it), 1, 1), next(it), next(it))
        if stride == 2:
            x = norm(conv(x, next(it), 2, 0), next(it), next(it))
        x = relu(out + x)
    return x.mean((2, 3)) @ next(it).T + next(it)
"""


def resnet18(batch: int = 8, size: int = 112) -> Workload:
    """ResNet-18, SGD with momentum."""
    data = _data((batch, 3, size, size), 1000, batch)
    optimizer = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
"""
    torch = data + FILL + RESNET + optimizer + _TENSORS + _LOSS
    jax = (
        "TRAIN = True\n" + data + WEIGHTS + _JAX + RESNET_JAX
        + """
def loss(ps, x, y):
    return cross_entropy(logits(ps, x), y)
train = trainer(loss, *sgd(0.01, 0.9, 1e-4))
"""
    )  # fmt: skip
    name = f"ResNet-18, batch {batch}, {size} x {size}, SGD with momentum"
    return Workload(name, "step", training(torch, jax), rtol=2e-2)


GPT = """
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).reshape(B, T, C))
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * width, width))
    def forward(self, x, cache=None):
        x = x + self.attention(self.ln1(x), cache)
        return x + self.mlp(self.ln2(x))
class GPT(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
    def forward(self, x, caches=None):
        start = 0 if caches is None else caches[0][0].shape[2]
        h = self.tokens(x) + self.places(torch.arange(start, start + x.shape[1]))
        for k, block in enumerate(self.blocks):
            h = block(h, None if caches is None else caches[k])
        return self.head(self.norm(h))
"""
_GPT_JAX = """
V, W, H, L = VOCABULARY, WIDTH, HEADS, LAYERS
shapes = [(V, W), (CONTEXT, W)]
for _ in range(L):
    shapes += [(W,), (W,), (W,), (W,), (3 * W, W), (3 * W,), (W, W), (W,),
               (4 * W, W), (4 * W,), (W, 4 * W), (W,)]
shapes += [(W,), (W,), (V, W)]
params = [jnp.asarray(w) for w in weights(*shapes)]
def norm(x, w, b):
    m = x.mean(-1, keepdims=True)
    return (x - m) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b
def loss(ps, x, y):
    it = iter(ps)
    h = next(it)[x] + next(it)[:x.shape[1]]
    B, T = x.shape
    mask = jnp.tril(jnp.ones((T, T), bool))
    for _ in range(L):
        l1w, l1b, l2w, l2b, qw, qb, ow, ob, w1, b1, w2, b2 = (next(it) for _ in range(12))
        qkv = norm(h, l1w, l1b) @ qw.T + qb
        q, k, v = (t.reshape(B, T, H, W // H).transpose(0, 2, 1, 3)
                   for t in jnp.split(qkv, 3, -1))
        s = jnp.where(mask, q @ k.transpose(0, 1, 3, 2) / (W // H) ** 0.5, -jnp.inf)
        o = (jax.nn.softmax(s, -1) @ v).transpose(0, 2, 1, 3).reshape(B, T, W)
        h = h + o @ ow.T + ob
        h = h + jax.nn.gelu(norm(h, l2w, l2b) @ w1.T + b1) @ w2.T + b2
    h = norm(h, next(it), next(it)) @ next(it).T
    return cross_entropy(h.reshape(-1, V), y)
train = trainer(loss, *adam(3e-4, 0.01))
"""


def gpt(
    layers: int = 4, width: int = 256, heads: int = 4, context: int = 128, batch: int = 8
) -> Workload:
    """A GPT of 65 characters, AdamW."""
    data = f"""
x_ = np.random.default_rng(1).integers(0, 65, ({batch}, {context}))
y_ = np.random.default_rng(2).integers(0, 65, ({batch * context},))
"""
    torch = (
        data + FILL + GPT
        + f"\nmodel = fill(GPT(65, {context}, {width}, {layers}, {heads}))\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)\n" + _TENSORS
        + "\ndef loss_of():\n    return F.cross_entropy(model(x).flatten(0, 1), y)\n"
    )  # fmt: skip
    text = _GPT_JAX
    for name, n in (("VOCABULARY", 65), ("WIDTH", width), ("HEADS", heads), ("LAYERS", layers),
                    ("CONTEXT", context)):  # fmt: skip
        text = text.replace(name, str(n))
    name = f"GPT {layers} x {width}, context {context}, batch {batch}, AdamW"
    jax = data + WEIGHTS + _JAX + text
    return Workload(name, "step", training(torch, jax), rtol=5e-3)


_LSTM = """
rng = np.random.default_rng(0)
x_, y_ = (rng.standard_normal((STEPS, BATCH, WIDTH), dtype=np.float32) for _ in range(2))
sizes = [(4 * WIDTH, WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH,), (4 * WIDTH,)]
ws = [rng.uniform(-1, 1, s).astype(np.float32) / WIDTH ** 0.5 for s in sizes]
"""
_LSTM_TORCH = """
model = nn.LSTM(WIDTH, WIDTH)
with torch.no_grad():
    for p, w in zip(model.parameters(), ws):
        p.copy_(torch.from_numpy(w))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def loss_of():
    return F.mse_loss(model(x)[0], y)
"""
_LSTM_JAX = """
params = [jnp.asarray(w) for w in ws]
def loss(ps, x, y):
    wi, wh, bi, bh = ps
    g = x @ wi.T + bi + bh
    def one(state, g):
        h, c = state
        i, f, n, o = jnp.split(g + h @ wh.T, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(n)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h
    z = jnp.zeros(x.shape[1:])
    return ((lax.scan(one, (z, z), g)[1] - y) ** 2).mean()
train = trainer(loss, *sgd(1e-3))
"""


def lstm(batch: int = 32, steps: int = 64, width: int = 256) -> Workload:
    """An LSTM layer, SGD."""

    def sized(text: str) -> str:
        for name, n in (("STEPS", steps), ("BATCH", batch), ("WIDTH", width)):
            text = text.replace(name, str(n))
        return text

    torch = sized(_LSTM) + _TENSORS + sized(_LSTM_TORCH)
    jax = sized(_LSTM) + _JAX + _LSTM_JAX
    name = f"LSTM {batch} x {steps} x {width}, SGD"
    return Workload(name, "step", training(torch, jax), rtol=5e-3)


def workloads(rng: random.Random | None) -> list[Workload]:
    """Those of the table, or as many of shapes drawn at random."""
    if rng is None:
        return [mlp(), cnn(), resnet18(), gpt(), lstm()]
    sizes = (odd(rng, 100, 900), odd(rng, 100, 600), odd(rng, 50, 300), odd(rng, 5, 40))
    return [
        mlp(sizes, odd(rng, 30, 200)),
        cnn(odd(rng, 10, 40), odd(rng, 20, 80), odd(rng, 10, 80), 2 * odd(rng, 8, 18)),
        resnet18(odd(rng, 2, 9), odd(rng, 64, 130)),
        gpt(odd(rng, 1, 4), 4 * odd(rng, 30, 80), 4, odd(rng, 50, 200), odd(rng, 2, 9)),
        lstm(odd(rng, 10, 40), odd(rng, 20, 80), odd(rng, 100, 300)),
    ]
