# SPDX-License-Identifier: Apache-2.0
"""Our experts and kt-kernel's in one process, on the same weights and tokens, call by call in turns.

    compare.py [--experts N --topk K --hidden H --inner I] [--threads N] [--their-threads N]
               [--tokens 1,4,16,64] [--methods AMXINT8,...] [--table FILE] [--seconds S] [--json FILE]

The formula is that of kt-kernel's own tests: mean |out - reference| / mean |reference|. RAWINT4, FP8
and BF16 are the same stored numbers for both, and the reference has these in double precision;
AMXINT8 and AMXINT4 quantise BF16 weights each in its own way, and the reference has BF16. Times are
medians. Exits with 1 when ours is off by more than its format's bound."""

import argparse
import json
import statistics
import sys
import time

import torch

import kt
from kt.kernel import METHODS

# Of a layer with normal weights, against double precision: kernels alone where codes are given.
BOUNDS = {"BF16": 0.005, "FP8": 0.005, "RAWINT4": 0.015, "AMXINT8": 0.025, "AMXINT4": 0.16}
PARTS = ("gate_proj", "up_proj", "down_proj")


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("experts", 16), ("topk", 8), ("hidden", 2048), ("inner", 768),
                        ("threads", 2), ("seed", 42)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--their-threads", type=int, help="of kt-kernel's workers (default: --threads)")
    p.add_argument("--tokens", default="1,4,16,64")
    p.add_argument("--methods", default=",".join(BOUNDS))
    p.add_argument("--table", help="dispatch table of ours")
    p.add_argument("--seconds", type=float, default=2.0, help="for each number of tokens")
    p.add_argument("--json", help="write the rows there")
    return p.parse_args()


# ---- weights: {name: tensor} as checkpoints spell them, and what they mean in double precision ----

def made(method, n, k):
    w = torch.randn(n, k) / 10
    if method == "FP8":
        blocks = w.view(n // 128, 128, k // 128, 128)
        scale = (blocks.abs().amax((1, 3)) / 448).float()
        codes = (blocks / scale[:, None, :, None]).view(n, k).to(torch.float8_e4m3fn)
        means = codes.double().view(n // 128, 128, k // 128, 128) * scale.double()[:, None, :, None]
        return {"weight": codes, "weight_scale_inv": scale}, means.view(n, k)
    if method == "RAWINT4":
        groups = w.view(n, k // 32, 32)
        scale = (groups.abs().amax(2) / 7).bfloat16()
        codes = (groups / scale.float()[:, :, None]).round().clamp(-7, 7).to(torch.int32)
        means = (codes.double() * scale.double()[:, :, None]).view(n, k)
        nibbles = (codes.view(n, k // 8, 8) + 8) << (4 * torch.arange(8, dtype=torch.int32))
        return {"weight_packed": nibbles.sum(2, dtype=torch.int32), "weight_scale": scale}, means
    w = w.bfloat16()
    return {"weight": w}, w.double()


def make_layer(a, method):
    torch.manual_seed(a.seed)
    stored, meant = {}, {}
    for e in range(a.experts):
        for part in PARTS:
            n, k = (a.hidden, a.inner) if part == "down_proj" else (a.inner, a.hidden)
            found, meant[e, part] = made(method, n, k)
            for name, t in found.items():
                stored[f"{e}.{part}.{name}"] = t.contiguous()
    return stored, meant


# ---- both sides: a function of (tokens, x, ids, weights, out) ----

def ours(a, method, stored):
    layer = kt.MoE(a.experts, a.topk, a.hidden, a.inner, weights=METHODS[method], max_tokens=4096,
                   team=kt.Team(threads=a.threads, table=a.table))
    layer.load_tensors(stored)
    return lambda x, ids, weights, out: layer.forward(x, ids, weights, out)


class Theirs:
    KINDS = {"AMXINT8": ("AMXInt8_MOE",), "AMXINT4": ("AMXInt4_MOE",),
             "BF16": ("AMXBF16_MOE", "AVX2BF16_MOE"), "FP8": ("AMXFP8_MOE", "AVX2FP8_MOE"),
             "RAWINT4": ("AMXInt4_KGroup_MOE", "AVX2RawInt4_MOE")}

    @classmethod
    def kind(cls, method):
        """The class of this machine's extension, or None: without AVX-512 it has fewer."""
        from kt_kernel import kt_kernel_ext as ext
        return next((getattr(ext.moe, n) for n in cls.KINDS[method] if hasattr(ext.moe, n)), None)

    def __init__(self, a, method, stored):
        from kt_kernel import kt_kernel_ext as ext
        pool = ext.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [
            a.their_threads or a.threads]
        self.cpu, self.topk = ext.CPUInfer(pool), a.topk
        self.mask = torch.zeros(a.experts, dtype=torch.bool)
        c = ext.moe.MOEConfig(a.experts, a.topk, a.hidden, a.inner, self.mask.data_ptr())
        c.max_len, c.layer_idx, c.pool = 4096, 0, self.cpu.backend_
        self.kept = [stored]
        if method in ("AMXINT8", "AMXINT4"):
            for part in PARTS:
                stack = torch.stack([stored[f"{e}.{part}.weight"] for e in range(a.experts)])
                self.kept.append(stack)
                setattr(c, part, stack.data_ptr())
        else:
            code = "weight_packed" if method == "RAWINT4" else "weight"
            scale = {"RAWINT4": "weight_scale", "FP8": "weight_scale_inv"}.get(method)
            for part in PARTS:
                short = part.split("_")[0]
                at = lambda name: [[stored[f"{e}.{part}.{name}"].data_ptr() if name else 0
                                    for e in range(a.experts)]]
                setattr(c, f"{short}_projs", at(code))
                setattr(c, f"{short}_scales", at(scale))
            c.quant_config.bits = 4 if method == "RAWINT4" else 8
            c.quant_config.group_size = 32 if method == "RAWINT4" else 128
            c.quant_config.zero_point = False
        self.moe = self.kind(method)(c)
        identity = torch.arange(a.experts, dtype=torch.int64)
        self.cpu.submit(self.moe.load_weights_task(identity.data_ptr()))
        self.cpu.sync()

    def __call__(self, x, ids, weights, out):
        count = torch.tensor([x.shape[0]], dtype=torch.int32)
        self.cpu.submit(self.moe.forward_task(count.data_ptr(), self.topk, ids.data_ptr(),
                                              weights.data_ptr(), x.data_ptr(), out.data_ptr(), False))
        self.cpu.sync()


# ---- ----

def reference(a, meant, x, ids, weights, tokens):
    out = torch.zeros(tokens, a.hidden, dtype=torch.float64)
    for t in range(tokens):
        row = x[t].double()
        for e, weight in zip(ids[t].tolist(), weights[t].tolist()):
            h = torch.nn.functional.silu(meant[e, "gate_proj"] @ row) * (meant[e, "up_proj"] @ row)
            out[t] += weight * (meant[e, "down_proj"] @ h)
    return out


def off(out, want):
    return float((out[: want.shape[0]].double() - want).abs().mean() / want.abs().mean())


def seconds(side, call):
    time.sleep(0.06)  # workers of the other side spin 50 ms before they sleep
    since = time.perf_counter()
    side(*call)
    return time.perf_counter() - since


def row(a, method, tokens, sides, meant):
    x = (torch.randn(tokens, a.hidden) / 10).bfloat16()
    weights = torch.rand(tokens, a.topk)
    routings = [torch.stack([torch.randperm(a.experts)[: a.topk] for _ in range(tokens)])
                for _ in range(16)]
    outs = [torch.empty(tokens, a.hidden, dtype=torch.bfloat16) for _ in sides]
    want = reference(a, meant, x, routings[0], weights, min(tokens, 4))
    errors = []
    for side, out in zip(sides, outs):
        side(x, routings[0], weights, out)
        errors.append(off(out, want))
    times, until, i = [[], []], time.perf_counter() + a.seconds, 0
    while time.perf_counter() < until or i < 5:
        for s in ((0, 1), (1, 0))[i % 2]:
            times[s].append(seconds(sides[s], (x, routings[i % 16], weights, outs[s])))
        i += 1
    mine, other = (statistics.median(t) * 1e6 for t in times)
    return {"method": method, "experts": a.experts, "topk": a.topk, "hidden": a.hidden,
            "inner": a.inner, "tokens": tokens, "threads": a.threads,
            "their_threads": a.their_threads or a.threads, "calls": i,
            "kt_us": round(mine, 1), "kt_kernel_us": round(other, 1),
            "times_as_fast": round(other / mine, 2), "kt_error": round(errors[0], 5),
            "kt_kernel_error": round(errors[1], 5), "bound": BOUNDS[method],
            "ok": errors[0] <= BOUNDS[method]}


def main():
    a = options()
    rows = []
    for method in a.methods.split(","):
        if not Theirs.kind(method):
            print(f"{method:8} kt-kernel has no kernel for it on this machine", file=sys.stderr)
            continue
        stored, meant = make_layer(a, method)
        sides = [ours(a, method, stored), Theirs(a, method, stored)]
        for tokens in map(int, a.tokens.split(",")):
            r = row(a, method, tokens, sides, meant)
            rows.append(r)
            print(f"{method:8} {tokens:5} tokens: kt {r['kt_us']:9.0f} us, error {r['kt_error']:.4f};"
                  f" kt-kernel {r['kt_kernel_us']:9.0f} us, error {r['kt_kernel_error']:.4f};"
                  f" {r['times_as_fast']:.2f} times as fast", file=sys.stderr)
    if a.json:
        import kt_kernel
        head = {"kt": kt.__version__, "kt_kernel": kt_kernel.__version__,
                "kt_kernel_variant": kt_kernel.__cpu_variant__, "machine": kt.machine()["machine_class"]}
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(dict(head, rows=rows), f, indent=1)
            f.write("\n")
    return 0 if all(r["ok"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
