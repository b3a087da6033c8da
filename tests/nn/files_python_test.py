"""Round trips of files through files_roundtrip, compared here bit for bit.

files_python_test.py numpy|torch PROGRAM FOLDER
"""

import itertools
import subprocess
import sys

part, program, folder = sys.argv[1:]
source, target = folder + "/from_python", folder + "/from_tapehead"


def roundtrip(*arguments):
    """The exit status and the error message of the program."""
    run = subprocess.run([program, *arguments], stderr=subprocess.PIPE, text=True, check=False)
    return run.returncode, run.stderr


def copy(kind, *arguments):
    status, message = roundtrip(kind, source, target, *arguments)
    assert status == 0, message


def numpy_part():
    import numpy as np

    random = np.random.default_rng(5)
    forms = list(itertools.product("CF", ("little", "big")))
    shapes = [(), (0,), (5,), (2, 3), (3, 0, 2), (2, 3, 4), (130, 70), (1, 2, 1, 3, 1, 2, 1, 2)]

    def values(dtype, shape):
        kind = np.dtype(dtype).kind
        if kind == "b":
            return random.random(shape) < 0.5
        if kind == "f":
            array = np.asarray(random.standard_normal(shape) * 10.0 ** random.integers(-4, 4, shape))
            if array.size > 3:
                array.flat[:4] = [np.nan, np.inf, -np.inf, -0.0]
            return array.astype(dtype)
        limits = np.iinfo(dtype)
        highest = min(limits.max, 2**63 - 1)
        array = np.asarray(random.integers(limits.min, highest, shape, dtype, endpoint=True))
        if array.size > 1:
            array.flat[:2] = [limits.min, highest]
        return array

    def readable_as(kind):
        return {"f": ("float", "double"), "b": ("float", "double", "int64", "bool")}.get(
            kind, ("float", "double", "int64")
        )

    named = {"float": "f4", "double": "f8", "int64": "i8", "bool": "b1"}
    checked = 0
    for dtype in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1".split():
        for byte_order, order, shape in itertools.product("<>", "CF", shapes):
            array = np.array(values(dtype, shape), np.dtype(byte_order + dtype), order=order)
            version = [(1, 0), (2, 0), (3, 0)][checked % 3]
            with open(source, "wb") as file:
                np.lib.format.write_array(file, array, version)
            kinds = readable_as(array.dtype.kind)
            as_type = kinds[checked % len(kinds)]
            new_order, new_bytes = forms[checked // 3 % len(forms)]
            copy("npy", as_type, new_order, new_bytes)
            back = np.load(target)
            with np.errstate(over="ignore"):
                expected = array.astype(named[as_type])
            assert back.shape == array.shape, (dtype, back.shape, array.shape)
            written = np.dtype((">" if new_bytes == "big" else "<") + named[as_type])
            assert back.dtype == written, (back.dtype, written)
            if array.ndim > 1 and array.size > 1 and max(array.shape) < array.size:
                assert back.flags.f_contiguous == (new_order == "F"), (shape, new_order)
            same = back.astype(expected.dtype).tobytes() == expected.tobytes()
            assert same, (dtype, byte_order, order, shape)
            checked += 1

    refused = [
        (np.array([{}], object), "Python objects"),
        (np.zeros(2, [("x", "<f4"), ("y", "<i4")]), "records"),
        (np.zeros(2, "<c16"), "<c16"),
        (np.array(["text"]), "<U4"),
        (np.zeros(2, "M8[s]"), "<M8[s]"),
        (np.zeros(2, "V3"), "|V3"),
        (np.zeros((1,) * 9), "more than 8 axes"),
        (np.full(2, 2**63, "u8"), "element (0) is not a value of type int64"),
    ]
    for array, what in refused:
        with open(source, "wb") as file:
            np.lib.format.write_array(file, array)
        status, message = roundtrip("npy", source, target, "int64", "C", "little")
        assert status == 2 and message.startswith(source + ": ") and what in message, message
    print(f"{checked} arrays came back bit for bit, {len(refused)} were refused")


def torch_part():
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    torch.manual_seed(5)
    floats = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    integers = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 65504.0])
    tensors = {}
    for dtype in floats:
        wide = torch.randn(7, 5, dtype=torch.float64) * 10.0 ** torch.randint(-4, 4, (7, 5))
        tensors[f"matrix.{dtype}"] = wide.to(dtype)
        tensors[f"special.{dtype}"] = special.to(dtype)
        tensors[f"scalar.{dtype}"] = torch.tensor(0.1, dtype=dtype)
        tensors[f"none.{dtype}"] = torch.zeros(3, 0, dtype=dtype)
    for dtype in integers:
        limits = torch.iinfo(dtype)
        tensors[f"integers.{dtype}"] = torch.tensor([[limits.min, 0, 1, limits.max]], dtype=dtype)
    tensors["truth"] = torch.tensor([[True, False, False], [False, True, True]])
    tensors['a "quoted"\\ name,\nof\ttwo lines é€😀'] = torch.ones(2)
    metadata = {"format": "pt", "é": 'value "in quotes"\n'}

    def same(a, b):
        as_bytes = [x.reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*as_bytes)

    save_file(tensors, source, metadata)
    copy("safetensors")
    back = load_file(target)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.to(torch.int64) if tensor.dtype in integers else tensor
        assert same(back[name], expected), (name, tensor, back[name])
    with safe_open(target, "pt") as file:
        assert file.metadata() == metadata, file.metadata()

    # Written in fewer bits, where PyTorch rounds as well: from float, for from double it rounds twice.
    numbers = torch.cat([torch.randn(100_000) * 2.0 ** torch.randint(-30, 20, (100_000,)), special])
    halves = torch.arange(0, 0x7C00, dtype=torch.int16).view(torch.float16).float()
    middles = (halves[1:] + halves[:-1]) / 2
    numbers = torch.cat([numbers, middles, -middles, torch.tensor([65519.99, 65520.0, 3.4e38])])
    save_file({"x": numbers}, source)
    for dtype, name in [(torch.float16, "F16"), (torch.bfloat16, "BF16"), (torch.float64, "F64")]:
        copy("safetensors", name)
        written, expected = load_file(target)["x"], numbers.to(dtype)
        finite = ~expected.isnan()
        assert written.dtype == dtype and torch.equal(written.isnan(), expected.isnan())
        assert same(written[finite], expected[finite]), name

    model = torch.nn.MultiheadAttention(8, 2)
    save_file(model.state_dict(), source)
    copy("safetensors")
    other = torch.nn.MultiheadAttention(8, 2)
    other.load_state_dict(load_file(target), strict=True)
    x = torch.randn(3, 1, 8)
    assert torch.equal(model(x, x, x)[0], other(x, x, x)[0])
    print(f"{len(tensors)} tensors and a module came back bit for bit; {len(numbers)} numbers rounded alike")


{"numpy": numpy_part, "torch": torch_part}[part]()
