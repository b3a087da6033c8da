"""Layers that pytorch_layers_files wrote, loaded into PyTorch's modules: the same parameters, the same output.

pytorch_layers_files_test.py PROGRAM FOLDER
"""

import pathlib
import subprocess
import sys

import torch
from safetensors import safe_open
from torch import nn

program, folder = sys.argv[1:]
# A few dozen sums in another order, each rounded to 1.1e-16; a wrong layout misses by far more.
TOLERANCE, CLEARLY = 1e-11, 1e-6
torch.set_default_dtype(torch.float64)


def module_of(a):
    if a["module"] == "Linear":
        return nn.Linear(int(a["in"]), int(a["out"]), bias=a["bias"] == "1")
    if a["module"] == "Embedding":
        return nn.Embedding(int(a["count"]), int(a["width"]))
    if a["module"] == "LayerNorm":
        return nn.LayerNorm(int(a["width"]))
    if a["module"] == "RMSNorm":
        return nn.RMSNorm(int(a["width"]), eps=1e-6)
    width, heads = int(a["width"]), int(a["heads"])
    if a["module"] == "MultiheadAttention":
        kdim, vdim = int(a["kdim"]), int(a["vdim"])
        return nn.MultiheadAttention(
            width, heads, bias=a["bias"] == "1", kdim=kdim, vdim=vdim, batch_first=True
        )
    form = {
        "dim_feedforward": int(a["hidden"]),
        "dropout": 0.0,
        "activation": a["activation"],
        "norm_first": a["norm_first"] == "1",
        "batch_first": True,
    }
    if a["module"] == "Transformer":
        return nn.Transformer(width, heads, 2, 2, **form)
    return getattr(nn, a["module"])(width, heads, **form)


def output_of(name, module, t):
    if name in ("Linear", "Embedding", "LayerNorm", "RMSNorm"):
        return module(t["x"])
    blocked = ~t["seen"]
    if name == "MultiheadAttention":
        return module(t["x"], t["key"], t["value"], key_padding_mask=blocked)[0]
    if name == "TransformerEncoderLayer":
        return module(t["memory"], src_key_padding_mask=blocked)
    causal = torch.ones(t["x"].shape[1], t["x"].shape[1], dtype=torch.bool).triu(1)
    if name == "TransformerDecoderLayer":
        return module(t["x"], t["memory"], tgt_mask=causal, memory_key_padding_mask=blocked)
    return module(
        t["memory"],
        t["x"],
        tgt_mask=causal,
        src_key_padding_mask=blocked,
        memory_key_padding_mask=blocked,
    )


def distance(actual, expected):
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return ((actual - expected).abs().max() / expected.abs().max()).item()


subprocess.run([program, folder], check=True)
files = sorted(pathlib.Path(folder).glob("*.safetensors"))
assert len(files) == 15, files
worst = 0.0
for path in files:
    with safe_open(path, "pt") as file:
        arguments, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    state = {key[6:]: tensor for key, tensor in tensors.items() if key.startswith("state.")}
    module = module_of(arguments)
    fresh = output_of(arguments["module"], module, tensors)
    module.load_state_dict(state, strict=True)
    with torch.no_grad():
        error = distance(output_of(arguments["module"], module, tensors), tensors["output"])
        assert error <= TOLERANCE, (path.name, error)
        assert distance(fresh, tensors["output"]) > CLEARLY, path.name
        for key, tensor in state.items():  # every tensor counts
            moved = {**state, key: tensor.flip(0)}
            module.load_state_dict(moved, strict=True)
            assert distance(output_of(arguments["module"], module, tensors), tensors["output"]) > CLEARLY, key
    worst = max(worst, error)
print(f"{len(files)} layers written here give the same output in PyTorch; the worst is {worst:.1e} apart")
