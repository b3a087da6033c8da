#!/usr/bin/env python3
"""Times what else there is, on the CPU: PyTorch, torch.compile and JAX, on the cases of bench_attention, bench_ops and
bench_train. scripts/compare-peers runs it; by hand:

    printf '%s\n' attention_forward/long_f32 train_step/toy | python bench/peers.py torch --threads 1

ENGINE is torch, compile or jax. Reads the name of a case a line and answers each at once with a line of JSON:
{"case", "engine", "threads", "seconds"}, the best of several runs after a warm-up, or {"case", ..., "unknown": true} where the
engine does not have it. `memory/CASE` gives "resident_bytes", what three training steps add, in a fresh process.
"""
import argparse
import json
import math
import os
import sys
import time

# batch, heads, key/value heads, length, source length, width, causal, type
ATTENTION = {
    "long_f32": (1, 8, 8, 2048, 2048, 64, False, "f32"),
    "long_causal_f32": (1, 8, 8, 2048, 2048, 64, True, "f32"),
    "long_f64": (1, 8, 8, 1024, 1024, 64, False, "f64"),
    "wide_f32": (1, 4, 4, 2048, 2048, 128, False, "f32"),
    "mid_f32": (4, 8, 8, 512, 512, 64, True, "f32"),
    "gqa_f32": (1, 16, 2, 1024, 1024, 64, True, "f32"),
    "small_f32": (32, 4, 4, 128, 128, 32, True, "f32"),
    "toy_f32": (8, 4, 4, 64, 64, 16, True, "f32"),
    "toy_f64": (8, 4, 4, 64, 64, 16, True, "f64"),
    "tiny_f32": (4, 2, 2, 16, 16, 8, True, "f32"),
    "decode_f32": (1, 16, 4, 1, 4096, 64, False, "f32"),
    "ragged_f32": (2, 4, 4, 777, 1031, 40, False, "f32"),
    "seed_f64": (1, 1, 1, 16, 16, 8, False, "f64"),
}
# batch, length, width, heads, layers, vocabulary
TRAIN = {
    "tiny": (8, 16, 32, 2, 2, 32),
    "toy": (16, 64, 64, 4, 2, 64),
    "small": (16, 128, 128, 4, 4, 128),
    "medium": (8, 256, 256, 8, 4, 256),
}


def best_seconds(run, least_time, least_runs=3):
    """The shortest of at least `least_runs` runs that fill `least_time`, after two that are not counted."""
    run()
    run()
    best, spent, runs = math.inf, 0.0, 0
    while runs < least_runs or spent < least_time:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best


class Torch:
    """PyTorch, eager; with `compiled` the model of a training step goes through torch.compile."""

    def __init__(self, threads, compiled=False):
        import torch

        self.torch, self.compiled = torch, compiled
        torch.set_num_threads(threads)
        self.version = torch.__version__

    def attention(self, name, backward):
        torch = self.torch
        from torch.nn.functional import scaled_dot_product_attention as attend

        B, H, K, L, S, D, causal, type_name = ATTENTION[name]
        dtype = torch.float32 if type_name == "f32" else torch.float64
        q = torch.randn(B, H, L, D, dtype=dtype, requires_grad=backward)
        k = torch.randn(B, K, S, D, dtype=dtype, requires_grad=backward)
        v = torch.randn(B, K, S, D, dtype=dtype, requires_grad=backward)
        upstream = torch.randn(B, H, L, D, dtype=dtype)

        def forward():
            return attend(q, k, v, is_causal=causal, enable_gqa=H != K)

        if backward:
            return lambda: torch.autograd.grad(forward(), (q, k, v), upstream)
        return forward

    def overhead(self, backward):
        torch = self.torch
        x = torch.randn(8, requires_grad=True)

        def chain():
            y = x
            for _ in range(1000):
                y = y * 1.0001
            return y

        return (lambda: torch.autograd.grad(chain(), x, torch.ones(8))) if backward else chain

    def matmul(self, type_name):
        dtype = self.torch.float32 if type_name == "f32" else self.torch.float64
        a = self.torch.randn(2048, 2048, dtype=dtype)
        return lambda: a @ a

    def train(self, name):
        torch, nn, F = self.torch, self.torch.nn, self.torch.nn.functional
        B, L, M, heads, layers, vocabulary = TRAIN[name]

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm_1, self.norm_2 = nn.LayerNorm(M), nn.LayerNorm(M)
                self.packed, self.joined = nn.Linear(M, 3 * M), nn.Linear(M, M)
                self.up, self.down = nn.Linear(M, 4 * M), nn.Linear(4 * M, M)

            def forward(self, x):
                parts = self.packed(self.norm_1(x)).chunk(3, dim=-1)
                q, k, v = (p.unflatten(-1, (heads, M // heads)).transpose(1, 2) for p in parts)
                seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.joined(seen.transpose(1, 2).flatten(2))
                return x + self.down(F.gelu(self.up(self.norm_2(x))))

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.positions = nn.Embedding(vocabulary, M), nn.Embedding(L, M)
                self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
                self.norm, self.head = nn.LayerNorm(M), nn.Linear(M, vocabulary, bias=False)

            def forward(self, tokens):
                x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
                return self.head(self.norm(self.layers(x)))

        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        run = torch.compile(model) if self.compiled else model
        tokens, targets = (torch.randint(0, vocabulary, (B, L)) for _ in range(2))

        def step():
            optimizer.zero_grad()
            F.cross_entropy(run(tokens).flatten(0, 1), targets.flatten()).backward()
            optimizer.step()

        return step


class Jax:
    """JAX under jit. Its threads are set before it starts, and the process is bound to as many processors."""

    def __init__(self, threads):
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
        os.environ["XLA_FLAGS"] = (
            f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'} intra_op_parallelism_threads={threads}"
        )
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", "cpu")
        self.jax, self.version = jax, jax.__version__

    def waiting(self, f, *arguments):
        return lambda: self.jax.block_until_ready(f(*arguments))

    def normal(self, shape, dtype, factor=1.0):
        return self.jax.random.normal(self.jax.random.PRNGKey(0), shape, dtype) * dtype(factor)

    def attention(self, name, backward):
        jax, jnp = self.jax, self.jax.numpy
        B, H, K, L, S, D, causal, type_name = ATTENTION[name]
        dtype = jnp.float32 if type_name == "f32" else jnp.float64
        q, upstream = self.normal((B, L, H, D), dtype), self.normal((B, L, H, D), dtype)
        k, v = self.normal((B, S, K, D), dtype), self.normal((B, S, K, D), dtype)

        def forward(q, k, v):
            return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

        if not backward:
            return self.waiting(jax.jit(forward), q, k, v)
        return self.waiting(jax.jit(lambda q, k, v, dy: jax.vjp(forward, q, k, v)[1](dy)), q, k, v, upstream)

    def matmul(self, type_name):
        jnp = self.jax.numpy
        a = self.normal((2048, 2048), jnp.float32 if type_name == "f32" else jnp.float64)
        return self.waiting(self.jax.jit(lambda a: a @ a), a)

    def train(self, name):
        jax, jnp, lax = self.jax, self.jax.numpy, self.jax.lax
        B, L, M, heads, layers, vocabulary = TRAIN[name]
        f32 = jnp.float32

        def linear(inputs, outputs):
            return {"w": self.normal((inputs, outputs), f32, 0.02), "b": jnp.zeros(outputs, f32)}

        def norm():
            return {"gain": jnp.ones(M, f32), "bias": jnp.zeros(M, f32)}

        def layer():
            return {"norm_1": norm(), "packed": linear(M, 3 * M), "joined": linear(M, M), "norm_2": norm(),
                    "up": linear(M, 4 * M), "down": linear(4 * M, M)}

        start = {"tokens": self.normal((vocabulary, M), f32, 0.02), "positions": self.normal((L, M), f32, 0.02),
                 "layers": [layer() for _ in range(layers)], "norm": norm(),
                 "head": self.normal((M, vocabulary), f32, 0.02)}

        def normed(x, p):
            centred = x - x.mean(-1, keepdims=True)
            return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["gain"] + p["bias"]

        def applied(x, p):
            return x @ p["w"] + p["b"]

        allowed = jnp.tril(jnp.ones((L, L), bool))

        def attended(x, p):
            q, k, v = (part.reshape(B, L, heads, M // heads).transpose(0, 2, 1, 3)
                       for part in jnp.split(applied(x, p["packed"]), 3, -1))
            scores = jnp.where(allowed, q @ k.swapaxes(-1, -2) / math.sqrt(M // heads), -jnp.inf)
            seen = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(B, L, M)
            return applied(seen, p["joined"])

        def loss(parameters, tokens, targets):
            x = parameters["tokens"][tokens] + parameters["positions"]
            for p in parameters["layers"]:
                x = x + attended(normed(x, p["norm_1"]), p)
                x = x + applied(jax.nn.gelu(applied(normed(x, p["norm_2"]), p["up"]), approximate=False), p["down"])
            logits = normed(x, parameters["norm"]) @ parameters["head"]
            return -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[..., None], -1).mean()

        def adamw(p, m, v, g, t):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            moved = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
            return p * (1 - 1e-5) - 1e-3 * moved, m, v

        @jax.jit
        def step(parameters, m, v, t, tokens, targets):
            _, gradients = jax.value_and_grad(loss)(parameters, tokens, targets)
            moved = jax.tree.map(lambda p, m, v, g: adamw(p, m, v, g, t), parameters, m, v, gradients)
            return tuple(jax.tree.map(lambda _, new, i=i: new[i], parameters, moved,
                                      is_leaf=lambda x: isinstance(x, tuple)) for i in range(3))

        zeros = jax.tree.map(jnp.zeros_like, start)
        tokens, targets = (jax.random.randint(jax.random.PRNGKey(i), (B, L), 0, vocabulary) for i in (1, 2))
        state = [start, zeros, zeros]

        def run():
            state[:] = self.jax.block_until_ready(step(*state, f32(3), tokens, targets))

        return run


def prepared(engine, case):
    """What is to be timed, and how many equal parts a run of it has; nothing where the engine does not have it."""
    what, _, name = case.partition("/")
    if what in ("attention_forward", "attention_forward_backward") and name in ATTENTION:
        return engine.attention(name, what.endswith("backward")), 1
    if what == "train_step" and name in TRAIN:
        return engine.train(name), 1
    if what == "matmul" and name in ("2048_f32", "2048_f64"):
        return engine.matmul(name[-3:]), 1
    if what in ("overhead_record", "overhead_record_backward") and name == "chain1000" and hasattr(engine, "overhead"):
        return engine.overhead(what.endswith("backward")), 1000
    return None, 1


def resident(field):
    """Bytes: VmRSS now, VmHWM the most so far."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field))


def added_memory(engine, name):
    step = engine.train(name)
    before = resident("VmRSS")
    for _ in range(3):
        step()
    return resident("VmHWM") - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["torch", "compile", "jax"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--least-time", type=float, default=0.3, help="seconds to fill with runs of a case")
    arguments = parser.parse_args()
    if arguments.engine == "jax":
        engine = Jax(arguments.threads)
    else:
        engine = Torch(arguments.threads, compiled=arguments.engine == "compile")

    ready = {}
    for case in map(str.strip, sys.stdin):
        answer = {"case": case, "engine": arguments.engine, "threads": arguments.threads, "version": engine.version}
        if case.startswith("memory/"):
            answer["resident_bytes"] = added_memory(engine, case.removeprefix("memory/"))
        else:
            if case not in ready:
                ready[case] = prepared(engine, case)
            run, parts = ready[case]
            if run is None:
                answer["unknown"] = True
            else:
                answer["seconds"] = best_seconds(run, arguments.least_time) / parts
        print(json.dumps(answer), flush=True)


main()
