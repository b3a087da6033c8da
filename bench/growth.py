#!/usr/bin/env python3
"""How time and memory grow with the length, from the series of bench_attention:

    bench_attention --benchmark_filter='length_.*threads:1' --benchmark_format=json | python3 bench/growth.py

Prints a table, and for each measure the exponent p of c * length^p by least squares in logarithms over the lengths from 1,024 on,
where what does not grow no longer counts.
"""
import json
import math
import sys

FROM = 1024


def exponent(points):
    x = [math.log(length) for length, _ in points]
    y = [math.log(value) for _, value in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def main():
    measured = {}
    for run in json.load(sys.stdin)["benchmarks"]:
        what, name, _ = run["name"].split("/")
        measured.setdefault(int(name.removeprefix("length_")), {})[what] = run
    forward, both = "attention_forward", "attention_forward_backward"
    print("| length | forward, ms | with backward, ms | forward, KiB | with backward, KiB | forward, of sgemm | both |")
    print("| -----: | ----------: | ----------------: | -----------: | -----------------: | ----------------: | ---: |")
    for length, runs in sorted(measured.items()):
        f, b = runs[forward], runs[both]
        print(f"| {length} | {1e3 * f['best']:.3g} | {1e3 * b['best']:.3g} | {f['bytes'] / 1024:.0f} | {b['bytes'] / 1024:.0f} "
              f"| {f['of_sgemm']:.2f} | {b['of_sgemm']:.2f} |")
    for what in (forward, both):
        for counter in ("best", "bytes"):
            points = [(length, runs[what][counter]) for length, runs in sorted(measured.items()) if length >= FROM]
            print(f"{what}, {'time' if counter == 'best' else 'bytes'}: length^{exponent(points):.2f}")


main()
