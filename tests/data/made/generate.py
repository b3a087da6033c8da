#!/usr/bin/env python3
"""Writes the reference cases in this folder that tests/data/golden lacks. Made with PyTorch 2.13.0, float64, CPU, one
thread:

    python3 generate.py [FOLDER]

attention_nearly_tied*: scores of about 20,000 to 50,000 whose largest lie within a few units of each other, so that
weights are spread and no gradient vanishes. Queries are multiples of 1/8, keys of 1/256, and the scale 1 / sqrt(4) is
a power of two: every score is an exact double in whatever order it is summed, and what is left to compare is the
softmax and the gradients. `upstream` is the gradient of output, `grad_NAME` that of the input NAME.
"""
import os
import sys

import torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def multiples(shape, unit, low, high):
    """Random multiples of unit in [low, high]."""
    return torch.randint(round(low / unit), round(high / unit) + 1, shape) * unit


def nearly_tied(folder, name, seed, L, S, E, mask=None):
    torch.manual_seed(seed)
    B, D = 2, 4
    # The first two coordinates are large, and nearly the same for all keys; the other two make the gaps.
    query = torch.cat([multiples((B, L, 2), 1 / 8, 150, 200), multiples((B, L, 2), 1 / 8, -2, 2)], -1)
    key = torch.cat([multiples((B, 1, 2), 1 / 256, 150, 220) + multiples((B, S, 2), 1 / 256, -1 / 128, 1 / 128),
                     multiples((B, S, 2), 1 / 256, -1, 1)], -1)
    leaves = [x.requires_grad_(True) for x in (query, key, torch.randn(B, S, E))]
    query, key, value = leaves
    scores = query @ key.transpose(-2, -1) / 2
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    output = weights @ value
    upstream = torch.randn_like(output)
    grads = torch.autograd.grad((output * upstream).sum(), leaves)
    tensors = {"query": query, "key": key, "value": value, "output": output, "weights": weights, "upstream": upstream,
               "grad_query": grads[0], "grad_key": grads[1], "grad_value": grads[2]}
    if mask is not None:
        tensors["mask"] = mask
    save_file({k: t.detach().contiguous() for k, t in tensors.items()}, os.path.join(folder, name + ".safetensors"),
              metadata={"scale": "0.5", "made_with": "PyTorch " + torch.__version__})
    seen = scores.detach() if mask is None else scores.detach()[mask.expand_as(scores)]
    print(name, "scores", seen.min().item(), "to", seen.max().item(), "largest weight of each row",
          weights.amax(-1).flatten().tolist(), "gradients", [g.abs().max().item() for g in grads])


target = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
nearly_tied(target, "attention_nearly_tied", 1, L=3, S=5, E=7)
nearly_tied(target, "attention_nearly_tied_cached", 2, L=3, S=7, E=5,
            mask=torch.arange(7) <= torch.arange(3)[:, None] + 4)
