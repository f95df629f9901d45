# SPDX-License-Identifier: Apache-2.0
"""Whole models of one GGUF file in several engines, process by process in turns.

    compare.py FILE... --kt PATH [--llama PATH] [--ik PATH] [--threads N] [--rounds N]
               [--prompt N] [--generate N] [--depth N] [--cache bf16|int8] [--table FILE] [--json FILE]

--llama and --ik are llama-bench of llama.cpp and of ik_llama.cpp. Each round starts every engine once,
which warms up and measures once; a figure is the median of the rounds, in tokens per second, with the
least and the largest. --cache: of keys and values, bf16 (f16 of the others) or int8 (their q8_0). --depth:
tokens in the cache before. ik_llama.cpp has no such switch and is given the
whole prompt instead (-gp), so that of its figures at a depth there is generation alone."""

import argparse
import json
import statistics
import subprocess
import sys


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("file", nargs="+")
    p.add_argument("--kt", required=True)
    p.add_argument("--llama")
    p.add_argument("--ik")
    for name, value in (("threads", 2), ("rounds", 5), ("prompt", 512), ("generate", 128), ("depth", 0)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--cache", choices=("bf16", "int8"), default="bf16")
    p.add_argument("--table", default="", help="dispatch table of ours; without it every kernel is estimated")
    p.add_argument("--json", help="write the rows there")
    return p.parse_args()


def cache_of_llama(o):
    return ["-ctk", "q8_0", "-ctv", "q8_0"] if o.cache == "int8" else []


def output(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(command)}: exit code {r.returncode}\n{r.stderr[-800:]}")
    return json.loads(r.stdout)


# Each returns {"prompt": tokens per second, "generate": tokens per second}, as far as the engine tells.

def by_kt(o, file):
    depth = ["-d", str(o.depth), "-c", str(o.depth + o.prompt + o.generate)] if o.depth else []
    r = output([o.kt, "bench", file, "-p", str(o.prompt), "-n", str(o.generate), "-t", str(o.threads), "-r", "1",
                "--table", o.table, "--kv", o.cache, "--json", *depth])
    return {"prompt" if t["test"].startswith("pp") else "generate": t["tokens_per_second"] for t in r["results"]}


def by_llama(o, file):
    depth = ["-d", str(o.depth)] if o.depth else []
    r = output([o.llama, "-m", file, "-p", str(o.prompt), "-n", str(o.generate), "-t", str(o.threads), "-r", "1",
                "-fa", "1", "-o", "json", *cache_of_llama(o), *depth])
    return {"prompt" if t["n_prompt"] else "generate": t["avg_ts"] for t in r}


def by_ik(o, file):
    what = ["-p", str(o.prompt), "-n", str(o.generate)]
    if o.depth:
        what = ["-p", "0", "-n", "0", "-gp", f"{o.depth},{o.generate}"]
    r = output([o.ik, "-m", file, *what, "-t", str(o.threads), "-r", "1", "-fa", "1", "-rtr", "1", "-fmoe", "1",
                "-o", "json", *cache_of_llama(o)])
    return {"generate" if t["n_gen"] else "prompt": t["avg_ts"] for t in r}


def main():
    o = options()
    engines = {"kt": by_kt}
    if o.llama:
        engines["llama.cpp"] = by_llama
    if o.ik:
        engines["ik_llama.cpp"] = by_ik
    rows = []
    for file in o.file:
        rates = {name: {"prompt": [], "generate": []} for name in engines}
        for _ in range(o.rounds):
            for name, run in engines.items():
                for test, rate in run(o, file).items():
                    rates[name][test].append(rate)
        for test in ("prompt", "generate"):
            row = {"file": file.rsplit("/", 1)[-1], "test": test, "tokens": getattr(o, test), "depth": o.depth,
                   "cache": o.cache, "threads": o.threads, "rounds": o.rounds, "tokens_per_second": {}}
            parts = []
            for name in engines:
                x = rates[name][test]
                if not x:
                    continue
                row["tokens_per_second"][name] = {"median": round(statistics.median(x), 2), "least": round(min(x), 2),
                                                  "largest": round(max(x), 2)}
                parts.append(f"{name} {statistics.median(x):.1f} ({min(x):.1f} .. {max(x):.1f})")
            if not parts:
                continue
            rows.append(row)
            print(f"{row['file']}, {test} {row['tokens']}, depth {o.depth}: " + "; ".join(parts), flush=True)
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump({"rows": rows}, f, indent=1)
            f.write("\n")


main()
