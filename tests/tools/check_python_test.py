"""Dumps of right and wrong attention, written by NumPy or PyTorch, through `tapehead check`.

check_python_test.py numpy|torch COMMAND FOLDER
"""

import json
import os
import re
import subprocess
import sys

part, command, folder = sys.argv[1:]
os.chdir(folder)
wrong = []


def check(path, *flags):
    arguments = [command, "check", "--json", path, *flags]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return run.returncode, json.loads(run.stdout), run.stderr


def agrees(path, *flags, **assumed):
    code, report, errors = check(path, *flags)
    taken = {key: report["assumed"].get(key) for key in assumed}
    if code != 0 or report["verdict"] != "agrees" or errors or taken != assumed:
        off = [tensor for tensor in report["tensors"] if not tensor["ok"]]
        wrong.append(f"{path} {flags}: {code} {report['verdict']} {report['next']} {taken} {off} {errors}")


def explained(path, name, *flags):
    code, report, _ = check(path, *flags)
    found = [m["id"] + ("/" + m["variant"] if m["variant"] else "") for m in report["mistakes"]]
    sets = [found] + report["alternatives"]
    if code != 1 or [name] not in sets:
        wrong.append(f"{path} {flags}: {code} {report['verdict']} {sets}, not {name}")


def numpy_part():
    import numpy as np

    random = np.random.default_rng(3)

    def attention(q, k, v, scale, allowed=None):
        scores = np.einsum("bhld,bhsd->bhls", q, k) * scale
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        lse = (np.log(total) + scores.max(-1, keepdims=True))[..., 0]
        return np.einsum("bhls,bhse->bhle", weights / total, v), weights / total, lse

    def write(name, spec, **arrays):
        os.makedirs(name)
        for key, array in arrays.items():
            np.save(f"{name}/{key}.npy", array)
        if spec is not None:
            with open(f"{name}/spec.json", "w", encoding="utf-8") as file:
                json.dump(spec, file)
        return name

    for dtype in ("f4", "f8", ">f4", "f2"):
        q, k = (random.standard_normal((2, 3, n, 8)).astype(dtype) for n in (4, 6))
        v = random.standard_normal((2, 3, 6, 5)).astype(dtype)
        out, weights, lse = attention(*(x.astype("f8") for x in (q, k, v)), 8**-0.5)
        results = dict(out=out.astype(dtype), attn_weights=weights.astype(dtype), lse=lse.astype(dtype))
        name = dtype.replace(">", "big_")
        agrees(write(name, None, q=q, k=k, v=v, **results), layout="BHLD", query="q")
        agrees(write(name + "_fortran", {"scale": 8**-0.5}, **{n: np.asfortranarray(x) for n, x in dict(
            q=q, k=k, v=v, **results).items()}))
        # JAX's order of axes, (B, N, H, D) with length first
        turned = {n: np.ascontiguousarray(x.swapaxes(1, 2)) for n, x in dict(query=q, key=k, value=v,
                                                                             encoded=results["out"]).items()}
        agrees(write(name + "_length_first", None, **turned), layout="BLHD", output="encoded")
        unscaled = attention(*(x.astype("f8") for x in (q, k, v)), 1)[0].astype(dtype)
        explained(write(name + "_unscaled", None, q=q, k=k, v=v, out=unscaled), "scale-omitted")
    allowed = np.arange(6) < np.array([6, 4])[:, None]
    out = attention(*(x.astype("f8") for x in (q, k, v)), 8**-0.5, allowed[:, None, None])[0]
    f8 = dict(q=q.astype("f8"), k=k.astype("f8"), v=v.astype("f8"), out=out)
    agrees(write("mask", None, attn_mask=allowed[:, None, None], **f8))
    agrees(write("padding", {"mask_means": "blocked"}, key_padding_mask=~allowed, **f8))
    agrees(write("integers", None, attention_mask=allowed.astype("i4"), **f8))
    agrees(write("lengths", None, key_lengths=np.array([6, 4]), **f8))
    explained(write("polarity", {"mask_means": "blocked"}, mask=allowed[:, None, None], **f8),
              "mask-polarity-inverted")


def torch_part():
    import torch
    from safetensors.torch import save_file

    functional = torch.nn.functional
    torch.manual_seed(5)

    def write(name, settings=None, **tensors):
        whole = {key: t.detach().clone(memory_format=torch.contiguous_format) for key, t in tensors.items()}
        save_file(whole, name + ".safetensors", settings or {})
        return name + ".safetensors"

    def turned(x):
        return x.transpose(1, 2)

    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        q, k, v = (torch.randn(2, 6, 9, 16, dtype=dtype, requires_grad=True) for _ in range(3))
        out = functional.scaled_dot_product_attention(q, k, v)
        up = torch.randn_like(out)
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), up)
        short = name.replace("bfloat", "bf").replace("float", "f")
        whole = dict(q=q, k=k, v=v, out=out, dout=up, dq=dq, dk=dk, dv=dv)
        agrees(write(name, **whole), computed_in=short, layout="BHLD")
        agrees(write(name + "_length_first", **{n: turned(x) for n, x in whole.items()}), layout="BLHD")
        agrees(write(name + "_merged", q=q, k=k, v=v, out=turned(out).reshape(2, 9, 96)))
        agrees(write(name + "_flat", {"heads": "6"}, **{n: turned(x).reshape(2, 9, 96) for n, x in dict(
            q=q, k=k, v=v, out=out).items()}), layout="BLD")
        agrees(write(name + "_fused", {"heads": "6"}, out=turned(out).reshape(2, 9, 96),
                     qkv=torch.cat([turned(x).reshape(2, 9, 96) for x in (q, k, v)], -1)))
        causal = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        agrees(write(name + "_causal", {"causal": "top-left"}, q=q, k=k, v=v, out=causal))
        agrees(write(name + "_causal_not_said", q=q, k=k, v=v, out=causal), causal="top-left")
        if dtype == torch.bfloat16:
            agrees(write("kept_in_float", **{n: x.float() for n, x in dict(q=q, k=k, v=v, out=out).items()}),
                   computed_in="bf16")
        k, v = (torch.randn(2, 2, 13, 16, dtype=dtype) for _ in range(2))
        allowed = torch.rand(2, 1, 9, 13) > 0.4
        allowed[..., 0] = True
        grouped = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
        agrees(write(name + "_grouped", q=q, k=k, v=v, attn_mask=allowed, attn_output=grouped))
        bias = torch.randn(9, 13, dtype=dtype)
        biased = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        agrees(write(name + "_additive", q=q, k=k, v=v, attn_mask=bias, context=biased))

        tiled = functional.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1))
        explained(write(name + "_tiled", q=q, k=k, v=v, out=tiled), "gqa-tile")
    packed_part(torch, write)
    snippet_part()


# Sequences end to end, with where each begins, as kernels for unequal lengths take them.
def packed_part(torch, write):
    queries, keys = [3, 5, 1], [4, 7, 6]
    q = [torch.randn(n, 6, 16) for n in queries]
    k, v = ([torch.randn(n, 2, 16) for n in keys] for _ in range(2))

    def attention(q, k, v):
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)

    def starts(lengths):
        return torch.tensor([0] + lengths).cumsum(0).int()

    out = torch.cat([attention(*sequence) for sequence in zip(q, k, v)])
    rows = dict(q=torch.cat(q), k=torch.cat(k), v=torch.cat(v), out=out)
    agrees(write("packed", {"causal": "bottom-right"}, **rows,
                 cu_seqlens_q=starts(queries), cu_seqlens_k=starts(keys)), layout="THD")


# The lines that --help shows write a dump which agrees.
def snippet_part():
    import torch

    text = subprocess.run([command, "check", "--help"], capture_output=True, text=True, check=True).stdout
    lines = re.search(r"From PyTorch:\n(.*?)\n *Then:", text, re.S).group(1)
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    program = "\n".join(line.strip() for line in lines.splitlines())
    exec(program, {"torch": torch, "q": q, "k": k, "v": v})
    agrees("dump.safetensors", output="out")


numpy_part() if part == "numpy" else torch_part()
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
