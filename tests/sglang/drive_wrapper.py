# SPDX-License-Identifier: Apache-2.0
"""SGLang's own kt_ep_wrapper.py over our experts: drive_wrapper.py MODEL_FOLDER.

The file is the installed package's, unchanged, and it imports `kt_kernel` by that name. What is
replaced, since there is neither a GPU nor a running server:

  sglang.srt.runtime_context, .arg_groups.overrides, .utils, .eplb.expert_location_dispatch,
  .layers.quantization.base_config, .layers.moe.{topk, token_dispatcher}: what the file asks of them
  torch.cuda.synchronize, torch.cuda.current_stream: nothing to wait for
  the method of the GPU's experts: the double reference, for ids that are not masked
"""

import glob
import importlib.util
import os
import sys
import types
from collections import namedtuple

import torch
from safetensors import safe_open

MODEL = sys.argv[1]
LAYERS, EXPERTS, TOPK, HIDDEN, INNER, ON_GPU = 4, 16, 4, 256, 128, 5


def module(name, **members):
    m = types.ModuleType(name)
    m.__dict__.update(members)
    sys.modules[name] = m
    return m


def replace_sglang(deferred):
    settings = types.SimpleNamespace(
        kt_weight_path=MODEL, kt_num_gpu_experts=ON_GPU, kt_cpuinfer=2, kt_threadpool_count=1,
        kt_method="BF16", kt_max_deferred_experts_per_token=deferred)
    Standard = namedtuple("Standard", "hidden_states")
    maps = types.SimpleNamespace(physical_to_logical_map_cpu=torch.arange(EXPERTS).repeat(8, 1))
    checker = types.SimpleNamespace(format_is_bypassed=lambda output: False)
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.moe",
                 "sglang.srt.layers.quantization", "sglang.srt.arg_groups", "sglang.srt.eplb"):
        module(name, __path__=[])
    module("sglang.srt.arg_groups.overrides", model_config_of=lambda args: types.SimpleNamespace(
        hf_config=types.SimpleNamespace(num_hidden_layers=LAYERS)))
    module("sglang.srt.layers.quantization.base_config", FusedMoEMethodBase=object)
    module("sglang.srt.runtime_context", get_exec=lambda: types.SimpleNamespace(moe=settings),
           get_parallel=lambda: types.SimpleNamespace(tp_rank=0),
           get_schedule=lambda: types.SimpleNamespace(chunked_prefill_size=512))
    module("sglang.srt.utils", get_compiler_backend=lambda: "eager")
    module("sglang.srt.eplb.expert_location_dispatch",
           get_global_expert_location_metadata=lambda: maps)
    module("sglang.srt.layers.moe.token_dispatcher", StandardCombineInput=Standard)
    module("sglang.srt.layers.moe.topk", TopKOutputChecker=checker)
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: types.SimpleNamespace(cuda_stream=0)


def load_wrapper():
    for folder in sys.path:
        path = os.path.join(folder, "sglang/srt/layers/moe/kt_ep_wrapper.py")
        if os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("kt_ep_wrapper", path)
            m = importlib.util.module_from_spec(spec)
            sys.modules["kt_ep_wrapper"] = m
            spec.loader.exec_module(m)
            return m
    sys.exit("drive_wrapper: the package sglang is not installed")


def experts(layer):
    """[experts][gate, up, down] in double precision."""
    found = {}
    for path in glob.glob(os.path.join(MODEL, "*.safetensors")):
        with safe_open(path, "pt") as f:
            for name in f.keys():
                if f".layers.{layer}.mlp.experts." in name:
                    found[name] = f.get_tensor(name).double()
    return [[found[f"model.layers.{layer}.mlp.experts.{e}.{p}_proj.weight"]
             for p in ("gate", "up", "down")] for e in range(EXPERTS)]


def reference(weights, x, ids, scores, wanted):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.shape[0]):
        for e, score in zip(ids[t].tolist(), scores[t].tolist()):
            if e >= 0 and wanted(e):
                gate, up, down = weights[e]
                row = x[t].double()
                h = torch.nn.functional.silu(gate @ row) * (up @ row)
                out[t] += score * (down @ h)
    return out


class GpuMethod:
    """What a quantisation method of SGLang does for the GPU's experts."""

    def __init__(self, weights, Combined):
        self.weights, self.Combined = weights, Combined

    def create_weights(self, layer, num_experts, **_):
        assert num_experts == ON_GPU

    def create_moe_runner(self, layer, config):
        assert config.num_local_experts == ON_GPU

    def apply(self, layer, dispatch):
        scores, ids, _ = dispatch.topk_output
        assert int(ids.max()) < ON_GPU, "ids of the CPU were not masked"
        out = reference(self.weights, dispatch.hidden_states, ids, scores, lambda e: True)
        return self.Combined(out.to(dispatch.hidden_states.dtype))


def run(deferred):
    replace_sglang(deferred)
    sglang = load_wrapper()
    assert sglang.KTRANSFORMERS_AVAILABLE
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
    TopK = namedtuple("TopK", "topk_weights topk_ids router_logits")
    Dispatch = namedtuple("Dispatch", "hidden_states topk_output")
    layer = types.SimpleNamespace(top_k=TOPK, intermediate_size_per_partition=INNER, moe_tp_size=1)
    config = types.SimpleNamespace(activation="silu", num_local_experts=EXPERTS)
    methods = []
    for index in (LAYERS - 2, LAYERS - 1):
        gpu = GpuMethod(experts(index), StandardCombineInput)
        method = sglang.KTEPWrapperMethod(gpu, sglang.create_kt_config_from_server_args(None, index))
        method.create_weights(layer, num_experts=EXPERTS, hidden_size=HIDDEN,
                              intermediate_size_per_partition=INNER, params_dtype=torch.bfloat16)
        method.process_weights_after_loading(layer)
        method.create_moe_runner(layer, config)
        methods.append((index, method))
    off = {}
    for tokens in (1, 33):
        torch.manual_seed(tokens)
        x = torch.randn(tokens, HIDDEN).bfloat16()
        ids = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(tokens)])
        scores = torch.rand(tokens, TOPK)
        got, want = 0, 0
        for index, method in methods:
            got = got + method.apply(layer, Dispatch(x, TopK(scores, ids.clone(), None))).hidden_states.double()
            want = want + reference(method.gpu_method.weights, x, ids, scores, lambda e: True)
            off[tokens, index] = float((got - want).abs().mean() / want.abs().mean())
            print(f"deferred {deferred}, {tokens} tokens, layers to {index}: {off[tokens, index]:.4f} "
                  "from the reference")
    return off


exact = run(0)
assert 0 < max(exact.values()) < 0.006, exact  # rows and both parts of a sum are BF16
moved = run(1)
assert moved[33, LAYERS - 2] > 0.02, moved  # one expert of each token comes a layer later,
assert max(moved[t, LAYERS - 1] for t in (1, 33)) < 0.006, moved  # and the last layer has them all
