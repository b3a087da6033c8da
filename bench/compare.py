"""Runs our benchmarks and the peers in turn, and prints one table. scripts/compare-peers calls this."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {  # by our program
    "bench_attention": [
        f"{what}/{name}"
        for name in ("long_f32", "long_causal_f32", "long_f64", "wide_f32", "mid_f32", "gqa_f32", "small_f32", "toy_f32",
                     "toy_f64", "tiny_f32", "decode_f32", "ragged_f32", "seed_f64")
        for what in ("attention_forward", "attention_forward_backward")
    ],
    "bench_train": [f"train_step/{name}" for name in ("tiny", "toy", "small", "medium")],
    "bench_ops": ["overhead_record/chain1000", "overhead_record_backward/chain1000", "matmul/2048_f32",
                  "matmul/2048_f64"],
}
MEMORY = "memory/medium"


class Ours:
    name = "tapehead"

    def __init__(self, folder, threads):
        self.folder, self.threads, self.context = folder, threads, {}

    def seconds(self, program, case):
        command = [os.path.join(self.folder, program), f"--benchmark_filter=^{case}/threads:{self.threads}$",
                   "--benchmark_format=json", "--benchmark_min_time=0.3"]
        environment = dict(os.environ, TAPEHEAD_THREADS=str(self.threads))
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
        self.context = {key: answer["context"][key] for key in ("openblas", "vectors")}
        return answer["benchmarks"][0]["best"], answer["benchmarks"][0]

    def memory(self, case):
        command = [os.path.join(self.folder, "bench_train"), "--memory", case]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["resident_bytes"]


class Peer:
    """A process that keeps its models and answers a case at a time."""

    def __init__(self, engine, threads):
        self.name, self.threads = engine, threads
        self.command = [sys.executable, os.path.join(HERE, "peers.py"), engine, "--threads", str(threads)]
        self.process = self.start()
        self.version = None

    def start(self):
        # The thread pool of a peer must not be told otherwise by the environment.
        return subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, process, case):
        process.stdin.write(case + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"compare-peers: {self.name} ended at {case}")
        answer = json.loads(line)
        self.version = answer["version"]
        return answer

    def seconds(self, case):
        return self.ask(self.process, case).get("seconds")

    def memory(self, case):
        fresh = self.start()
        answer = self.ask(fresh, "memory/" + case)
        fresh.stdin.close()
        fresh.wait()
        return answer["resident_bytes"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def shown(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def table(rows, engines):
    lines = [["case", "tapehead", *engines, "best peer / ours"]]
    for row in rows:
        times = [shown(row["seconds"][e]) if row["seconds"].get(e) else "-" for e in ("tapehead", *engines)]
        lines.append([f"{row['case']}/threads:{row['threads']}", *times, f"{row['ratio']:.2f}" if row["ratio"] else "-"])
    widths = [max(map(len, column)) for column in zip(*lines)]
    rule = ["-" * w for w in widths]
    for line in [lines[0], rule, *lines[1:]]:
        print("| " + " | ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                                for i, (cell, w) in enumerate(zip(line, widths))) + " |")


def measure(arguments, threads):
    ours = Ours(arguments.bin, threads)
    peers = [Peer(engine, threads) for engine in arguments.engines]
    rows = []
    for program, cases in CASES.items():
        for case in cases:
            if arguments.cases and not any(text in case for text in arguments.cases):
                continue
            times = {}
            for _ in range(arguments.rounds):
                seconds, counters = ours.seconds(program, case)
                times.setdefault("tapehead", []).append(seconds)
                for peer in peers:
                    seconds = peer.seconds(case)
                    if seconds:
                        times.setdefault(peer.name, []).append(seconds)
            medians = {engine: statistics.median(list_) for engine, list_ in times.items()}
            best = min((s for engine, s in medians.items() if engine != "tapehead"), default=None)
            rows.append({"case": case, "threads": threads, "seconds": medians, "rounds": times,
                         "ratio": best / medians["tapehead"] if best else None,
                         "gflops": counters.get("GFLOP/s"), "of_sgemm": counters.get("of_sgemm"),
                         "bytes": counters.get("bytes")})
            print(f"{case}/threads:{threads}: {rows[-1]['ratio'] or 0:.2f}", file=sys.stderr, flush=True)
    memory = {}
    if threads == 1 and (not arguments.cases or any(text in MEMORY for text in arguments.cases)):
        memory["tapehead"] = ours.memory("medium")
        memory.update({p.name: p.memory("medium") for p in peers if p.name != "compile"})
    versions = {"tapehead": ours.context, **{p.name: p.version for p in peers}}
    for peer in peers:
        peer.close()
    return rows, memory, versions


def main():
    parser = argparse.ArgumentParser(prog="compare-peers")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--default-out", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--engines", nargs="*", choices=["torch", "compile", "jax"], default=["torch", "compile", "jax"])
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or min(arguments.threads) < 1:
        parser.error("--rounds and --threads are at least 1")
    if max(arguments.threads) > (os.cpu_count() or 1) or max(arguments.threads) > 2:
        parser.error(f"--threads goes to {min(2, os.cpu_count() or 1)} here")

    rows, memory, versions = [], {}, {}
    for threads in arguments.threads:
        more, memory_here, versions = measure(arguments, threads)
        rows += more
        memory = memory or memory_here
    if not rows and not memory:
        parser.error("no case has such a name")
    table(rows, arguments.engines)
    if memory:
        print("\nresident memory that three steps of train_step/medium add: " +
              ", ".join(f"{engine} {size / 1e6:.0f} MB" for engine, size in memory.items()))
    report = {"schema": 1, "processor": processor(), "system": platform.platform(), "versions": versions,
              "rounds": arguments.rounds, "cases": rows, "resident_bytes": memory}
    out = arguments.out or arguments.default_out
    with open(out, "w") as file:
        json.dump(report, file, indent=1)
    print(f"compare-peers: {out} has every round", file=sys.stderr)


try:
    main()
except KeyboardInterrupt:
    sys.exit(130)
