#!/usr/bin/env python3
"""Writes the reference cases in this folder that tests/data/golden lacks. Made with PyTorch 2.13.0, float64, CPU, one
thread:

    python3 generate.py [FOLDER]

attention_nearly_tied*: scores of about 20,000 to 50,000 whose largest lie within a few units of each other, so that
weights are spread and no gradient vanishes. Queries are multiples of 1/8, keys of 1/256, and the scale 1 / sqrt(4) is
a power of two: every score is an exact double in whatever order it is summed, and what is left to compare is the
softmax and the gradients. `upstream` is the gradient of output, `grad_NAME` that of the input NAME.

op_*: ops at ties, zeros and tails, and over several axes, where tests/data/golden has no case or one whose gradients
are next to nothing. `second_NAME` is the gradient of sum(grad_* vector_*) with respect to the input NAME.

optim_*: as in tests/data/golden, but with decay where that has none, an eps that can be seen, and another rate each
step (`rates`). optim_rates: the rates of steps 0 to 29 of schedules in sequence and beyond their ends.
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


def write_op(folder, name, f, inputs, constants=(), second=False, **meta):
    """The case op_NAME of output = f(*inputs, *constants), with the second order when asked for."""
    leaves = [x.clone().requires_grad_(True) for x in inputs.values()]
    constants = dict(constants)
    output = f(*leaves, *constants.values())
    upstream = torch.randn_like(output)
    grads = torch.autograd.grad((output * upstream).sum(), leaves, create_graph=second)
    tensors = {**inputs, **constants, "output": output, "upstream": upstream,
               **{"grad_" + k: g for k, g in zip(inputs, grads)}}
    if second:
        vectors = [torch.randn_like(x) for x in leaves]
        u = sum((g * v).sum() for g, v in zip(grads, vectors))
        tensors.update({"vector_" + k: v for k, v in zip(inputs, vectors)})
        tensors.update({"second_" + k: g for k, g in zip(inputs, torch.autograd.grad(u, leaves))})
    # A gradient that is zero throughout could not fail.
    assert all(t.abs().max() > 0.1 for k, t in tensors.items() if k.startswith(("grad_", "second_"))), name
    save_file({k: t.detach().contiguous() for k, t in tensors.items()},
              os.path.join(folder, "op_" + name + ".safetensors"),
              metadata={**{k: str(v) for k, v in meta.items()}, "made_with": "PyTorch " + torch.__version__})


def elementwise_and_reductions(folder):
    torch.manual_seed(3)
    F = torch.nn.functional
    integers = torch.tensor([[-2., -1., 0.], [0., 1., 2.]])
    write_op(folder, "clamp", lambda x: x.clamp(-1, 0.5),
             {"x": torch.cat([torch.randn(9), torch.tensor([-1., 0.5])])}, low=-1, high=0.5)
    write_op(folder, "abs_zero", torch.abs, {"x": torch.tensor([-1.5, 0., 2., -0.])})
    write_op(folder, "tails", lambda x: torch.stack([torch.sigmoid(x), F.silu(x), F.softplus(x, threshold=800.)]),
             {"x": torch.tensor([-700., -40., -1., 0., 3., 38., 700.])})
    write_op(folder, "pow_signs", lambda x, y: x ** y,
             {"x": torch.tensor([-2., -0.5, -3., 1.5, 2.])}, {"y": torch.tensor([3., 2., 0., 0., -1.5])})
    write_op(folder, "pow_zero", lambda x, y: x ** y,
             {"x": torch.tensor([0., 0., 0., 0., 2.]), "y": torch.tensor([0., 1., 2., 3.5, 0.])})
    for name in ("maximum", "minimum"):
        write_op(folder, name + "_ties", getattr(torch, name),
                 {"x": integers[:, :, None], "y": integers.T.flatten()[:4]})
    x = torch.randn(3, 1, 4)
    write_op(folder, "where_all", lambda x, y, condition: torch.where(condition, x, y),
             {"x": x, "y": torch.randn(2, 1)}, {"condition": torch.rand(5, 1, 2, 4) > 0.4})
    write_op(folder, "var_sample", lambda x: x.var((0, 2), correction=1, keepdim=True), {"x": torch.randn(2, 3, 4)},
             second=True, axis="0,2", keepdim=1, correction=1)
    write_op(folder, "amax_axes", lambda x: x.amax((0, 2)), {"x": torch.randint(0, 3, (2, 3, 4)).double()}, axis="0,2")
    write_op(folder, "amin_axes", lambda x: x.amin((0, 2)), {"x": torch.randint(0, 3, (2, 3, 4)).double()}, axis="0,2")
    x = torch.randn(5, 6)
    x[1, 2] = 0
    x[2, (0, 5)] = 0
    x[3, (1, 3, 4)] = 0
    write_op(folder, "prod_zeros", lambda x: x.prod(-1), {"x": x}, second=True)
    write_op(folder, "prod_all", torch.prod, {"x": 1 + torch.randn(2, 3, 3) / 4}, second=True)
    write_op(folder, "logsumexp_axes", lambda x: torch.logsumexp(x, (0, 2)), {"x": torch.randn(2, 3, 4)}, second=True)
    write_op(folder, "rms_norm_axes", lambda x, weight: F.rms_norm(x, (3, 4), weight, 1e-2),
             {"x": torch.randn(2, 3, 4), "weight": torch.randn(3, 4)}, second=True, eps=1e-2)
    for reduction in ("sum", "none"):
        write_op(folder, "mse_" + reduction, lambda x, y: F.mse_loss(x, y, reduction=reduction),
                 {"x": torch.randn(2, 3), "y": torch.randn(2, 3)})
    # kl_div with logarithms of q and gradients to both; none of p is 0, where PyTorch gives NaN.
    write_op(folder, "kl_div_both", lambda x, y: F.kl_div(x, y, reduction="none").sum(1),
             {"x": torch.log_softmax(torch.randn(2, 4, 3), 1), "y": torch.softmax(torch.randn(2, 4, 3), 1)},
             axis=1)
    target = torch.randint(0, 4, (2, 3, 5))
    target[1, 0, 2] = -9
    write_op(folder, "cross_entropy_axis", lambda x, target, weight: F.cross_entropy(
        x, target, weight, ignore_index=-9, label_smoothing=0.2, reduction="sum"), {"x": torch.randn(2, 4, 3, 5)},
        {"target": target, "weight": torch.rand(4) + 0.2}, second=True, axis=1, reduction="sum",
        ignore_index=-9, label_smoothing=0.2)


def large_and_nearly_tied(folder):
    """What softmax_huge of tests/data/golden cannot show: the scores are as large, but the weights are spread."""
    torch.manual_seed(4)
    x = 5000 + multiples((2, 3, 5), 1 / 64, -2, 2)
    write_op(folder, "softmax_tied", lambda x: torch.softmax(x, -1), {"x": x}, second=True, axis=-1)
    write_op(folder, "log_softmax_tied", lambda x: torch.log_softmax(x, -1), {"x": x}, second=True, axis=-1)


def optimizers(folder):
    optim = torch.optim

    def case(name, make, **meta):
        torch.manual_seed(5)
        start, gradients = torch.randn(2, 5), torch.randn(9, 2, 5)
        rates = 0.05 * (1 + torch.arange(9.)) / (1 + torch.arange(9.) % 4)
        p = start.clone().requires_grad_(True)
        optimizer = make([p])
        trace = []
        for gradient, rate in zip(gradients, rates):
            optimizer.param_groups[0]["lr"] = rate.item()
            p.grad = gradient.clone()
            optimizer.step()
            trace.append(p.detach().clone())
        save_file({"start": start, "gradients": gradients, "rates": rates, "trace": torch.stack(trace)},
                  os.path.join(folder, "optim_" + name + ".safetensors"),
                  metadata={**{k: str(v) for k, v in meta.items()}, "made_with": "PyTorch " + torch.__version__})

    case("sgd_decay", lambda p: optim.SGD(p, 1, weight_decay=0.2), weight_decay=0.2)
    case("sgd_momentum_decay", lambda p: optim.SGD(p, 1, momentum=0.8, weight_decay=0.2), momentum=0.8, weight_decay=0.2)
    for name, kind in (("adam_decay", optim.Adam), ("adamw_decay", optim.AdamW)):
        case(name, lambda p: kind(p, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
             beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3)

    def rates_of(make):
        optimizer = optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        scheduler = make(optimizer)
        rates = []
        for _ in range(30):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return torch.tensor(rates)

    S = optim.lr_scheduler

    def warm(o, after):
        return S.SequentialLR(o, [S.LinearLR(o, start_factor=0.1, total_iters=6), after], milestones=[6])

    save_file({"linear_down": rates_of(lambda o: S.LinearLR(o, start_factor=1, end_factor=0.2, total_iters=12)),
               "warm_up_cosine": rates_of(lambda o: warm(o, S.CosineAnnealingLR(o, 24, eta_min=0.02))),
               "warm_up_step": rates_of(lambda o: warm(o, S.StepLR(o, 7, 0.3))),
               "exponential_then_step": rates_of(lambda o: S.SequentialLR(
                   o, [S.ExponentialLR(o, 0.8), S.StepLR(o, 4, 0.5)], milestones=[10]))},
              os.path.join(folder, "optim_rates.safetensors"),
              metadata={"base_lr": "0.5", "made_with": "PyTorch " + torch.__version__})


target = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
nearly_tied(target, "attention_nearly_tied", 1, L=3, S=5, E=7)
nearly_tied(target, "attention_nearly_tied_cached", 2, L=3, S=7, E=5,
            mask=torch.arange(7) <= torch.arange(3)[:, None] + 4)
elementwise_and_reductions(target)
large_and_nearly_tied(target)
optimizers(target)
