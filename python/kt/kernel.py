# SPDX-License-Identifier: Apache-2.0
"""kt-kernel's public wrapper over our expert layers: SGLang's hybrid path runs with it unchanged.

    wrapper = KTMoEWrapper(layer_idx=0, num_experts=128, num_experts_per_tok=8, hidden_size=2048,
                           moe_intermediate_size=768, gpu_experts_mask=None, cpuinfer_threads=32,
                           threadpool_count=1, weight_path="Qwen3-30B-A3B", method="BF16",
                           chunked_prefill_size=4096)
    wrapper.load_weights(range(128))
    out = wrapper.forward(hidden_states, topk_ids, topk_weights, None)

Names, arguments and results are those of kt_kernel 0.7; torch is not imported before something asks
for it. What differs: no GPU and no pinned memory are needed; weight_path is the original checkpoint
(safetensors or GGUF), which is quantised while it is loaded; AMXINT4 means INT4 in groups of 32 on
any CPU; deferred experts are chosen for each token by itself. $KT_TABLE names a dispatch table.
"""

import ctypes
import os
import sys

from .moe import MoE, Team
from .tensors import BYTES, Tensor, tensor

# What the experts become, by kt-kernel's name of a method.
METHODS = {"AMXINT4": "int4", "AMXINT8": "int8", "MOE_INT4": "int4", "MOE_INT8": "int8",
           "RAWINT4": "native", "FP8": "native", "FP8_PERCHANNEL": "native", "BF16": "native",
           "GPTQ_INT4": "native", "MXFP4": "native", "LLAMAFILE": "native"}
_MAX_TOKENS = 4096  # of one piece of a call: its working memory

_team = None
_team_threads = 0
_told = set()
_capture_sizes = []
_deferred = {}  # layer_idx: what its deferred experts gave, for the next layer
_pinned = {}  # (tokens, parity of the layer): rows, ids, weights, out, deferred out
_last_size = None


def _tell_once(text):
    if text not in _told:
        _told.add(text)
        print(f"kt: {text}", file=sys.stderr)


def _shared_team(threads):
    """One team for all layers of the process, as kt-kernel has one pool."""
    global _team, _team_threads
    if _team is None:
        _team = Team(threads=threads, table=os.environ.get("KT_TABLE"))
        _team_threads = threads
    elif threads != _team_threads:
        _tell_once(f"cpuinfer_threads={threads} comes too late: the first layer made "
                   f"{_team_threads} threads, which all layers share")
    return _team


def _stream(handle):
    """A stream's handle as the driver's functions want it: the default stream has a number."""
    if handle is None:
        raise ValueError("cuda_stream is None, expected the stream of tensors of a GPU")
    return int(handle) or 1


def _pinned_like(parity, x, ids, weights):
    """Pinned memory for a call, shared by every second layer: what the next but one writes, the
    stream has read. Sizes that were announced for capture keep theirs, of others the last one."""
    global _last_size
    tokens = x.shape[0]
    for p in (0, 1) if _last_size not in (None, tokens, *_capture_sizes) else ():
        _pinned.pop((_last_size, p), None)
    _last_size = tokens
    if (tokens, parity) not in _pinned:
        _pinned[tokens, parity] = [t.new_empty(t.shape, device="cpu", pin_memory=True)
                                   for t in (x, ids, weights, x, x)]
    return _pinned[tokens, parity]


def _positive(**sizes):
    for name, value in sizes.items():
        if value <= 0:
            raise ValueError(f"{name} is {value}, expected at least 1")


def _refuse(unknown, mode):
    if mode != "inference":
        raise ValueError(f"mode '{mode}': only 'inference' is here, no fine-tuning")
    if unknown:
        raise TypeError(f"KTMoEWrapper has no argument {sorted(unknown)[0]!r}")


class KTMoEWrapper:
    """The experts of one layer that the CPU computes. Arguments as kt_kernel 0.7 has them;
    num_gpu_experts (older releases, and SGLang) stands for a mask of the first ids."""

    def __init__(self, layer_idx, num_experts, num_experts_per_tok, hidden_size,
                 moe_intermediate_size, gpu_experts_mask=None, cpuinfer_threads=0,
                 threadpool_count=1, weight_path=None, chunked_prefill_size=512, cpu_save=False,
                 max_deferred_experts_per_token=None, method="AMXINT4", numa_nodes=None,
                 mode="inference", num_gpu_experts=0, swiglu_limit=0.0, swiglu_alpha=0.0,
                 **unknown):
        _refuse(unknown, mode)
        _positive(num_experts=num_experts, num_experts_per_tok=num_experts_per_tok,
                  hidden_size=hidden_size, moe_intermediate_size=moe_intermediate_size,
                  chunked_prefill_size=chunked_prefill_size)
        if method not in METHODS:
            raise ValueError(f"method '{method}', expected one of {', '.join(METHODS)}")
        if cpu_save:
            raise ValueError("cpu_save: weights are not written here; `kt convert` does that")
        if (threadpool_count or 1) > 1 or numa_nodes:
            _tell_once("experts are cut over the memory nodes that the threads' cores belong to: "
                       "threadpool_count and numa_nodes have no effect")
        if method in ("AMXINT4", "MOE_INT4"):
            _tell_once(f"{method}: INT4 in groups of 32 with a scale each, on any CPU")
        self.layer_idx, self.method, self.weight_path = layer_idx, method, weight_path
        self.num_experts, self.num_experts_per_tok = num_experts, num_experts_per_tok
        self.hidden_size, self.moe_intermediate_size = hidden_size, moe_intermediate_size
        self.chunked_prefill_size = chunked_prefill_size
        self.max_deferred_experts_per_token = int(max_deferred_experts_per_token or 0)
        if not 0 <= self.max_deferred_experts_per_token <= num_experts_per_tok:
            raise ValueError(f"max_deferred_experts_per_token is {max_deferred_experts_per_token}, "
                             f"expected 0 to {num_experts_per_tok}")
        if gpu_experts_mask is None:
            gpu_experts_mask = [p < (num_gpu_experts or 0) for p in range(num_experts)]
        self.gpu_experts_mask = gpu_experts_mask  # may be changed in place while serving
        self._elsewhere = bytes(num_experts)
        self.moe = MoE(num_experts, num_experts_per_tok, hidden_size, moe_intermediate_size,
                       weights=METHODS[method], max_tokens=min(chunked_prefill_size, _MAX_TOKENS),
                       team=_shared_team(cpuinfer_threads or 0),
                       activation="swigluoai" if swiglu_alpha else "swiglu",
                       swiglu_limit=swiglu_limit or 0.0, swiglu_alpha=swiglu_alpha or 0.0)
        self._call = None
        self._announced = []  # numbers of tokens that graphs are captured for

    # ---- weights ----

    def load_weights(self, physical_to_logical_map_cpu=None):
        """From weight_path: the model's checkpoint. Expert p of the ids that come is expert
        physical_to_logical_map_cpu[p] of the checkpoint."""
        if self.weight_path is None:
            raise ValueError("weight_path is None, expected the model's folder or GGUF file")
        self.moe.load(self.weight_path, self.layer_idx)
        self._map(physical_to_logical_map_cpu)

    def load_weights_from_tensors(self, gate_proj, up_proj, down_proj,
                                  physical_to_logical_map_cpu=None):
        """From [experts, intermediate, hidden], the same, and [experts, hidden, intermediate] in
        host memory; the layer keeps a copy of its own."""
        sizes = {"gate_proj": (self.moe_intermediate_size, self.hidden_size),
                 "up_proj": (self.moe_intermediate_size, self.hidden_size),
                 "down_proj": (self.hidden_size, self.moe_intermediate_size)}
        found = {}
        for name, stack in zip(sizes, (gate_proj, up_proj, down_proj)):
            t = tensor(stack)
            if t.shape != (self.num_experts, *sizes[name]):
                raise ValueError(f"{name}: shape {t.shape}, expected "
                                 f"{(self.num_experts, *sizes[name])}")
            step = t.strides[0] * BYTES[t.dtype]
            for e in range(self.num_experts):
                found[f"{e}.{name}.weight"] = Tensor(t.owner, t.address + e * step, t.dtype,
                                                     t.shape[1:], t.strides[1:])
        self.moe.load_tensors(found)
        self._map(physical_to_logical_map_cpu)

    def _map(self, physical_to_logical):
        if physical_to_logical is not None:
            self.moe.set_map([int(e) for e in physical_to_logical])
        self._elsewhere = None

    def follow_mask(self):
        """Take over what was changed in gpu_experts_mask. submit_forward does; a graph's replays do
        not come here."""
        mask = self.gpu_experts_mask
        if hasattr(mask, "data_ptr") and getattr(mask.device, "type", "cpu") == "cpu":
            now = ctypes.string_at(mask.data_ptr(), len(mask))
        else:
            now = bytes(bool(v) for v in mask)
        if now != self._elsewhere:
            self.moe.set_mask(list(now))
            self._elsewhere = now

    @property
    def num_gpu_experts(self):
        return sum(bool(v) for v in self.gpu_experts_mask)

    # ---- calls ----

    def submit_forward(self, hidden_states, topk_ids, topk_weights, cuda_stream=None):
        """Begin: hidden_states [tokens, hidden] BF16 or F32, topk_ids [tokens, topk], topk_weights
        F32. Tensors in host memory are used where they lie. Those of a GPU are copied to pinned
        memory in the order of cuda_stream, which a CUDA graph may capture; nothing waits here."""
        x = hidden_states
        if len(x.shape) != 2:
            x = x.view(-1, self.hidden_size)
        if self._call is not None:
            raise ValueError(f"layer {self.layer_idx}: submit_forward twice without sync_forward")
        self.follow_mask()
        n_later = self.max_deferred_experts_per_token
        if x.device.type == "cpu":
            out, later = (x.new_empty(x.shape) for _ in range(2))
            ticket = self.moe.submit(x, topk_ids, topk_weights, out, deferred=n_later,
                                     deferred_out=later)
        else:
            if self._announced != _capture_sizes:
                self.moe.announce(_capture_sizes)
                self._announced = list(_capture_sizes)
            given = x, topk_ids, topk_weights
            *host, out, later = _pinned_like(self.layer_idx % 2, *given)
            for to, tensor_of_gpu in zip(host, given):
                to.copy_(tensor_of_gpu, non_blocking=True)
            ticket = self.moe.submit(*host, out, stream=_stream(cuda_stream), deferred=n_later,
                                     deferred_out=later)
        self._call = ticket, out, later if n_later else None, x

    def _wait(self, ticket, is_cpu, cuda_stream):
        if is_cpu:
            self.moe.sync(ticket)
        else:
            self.moe.sync_stream(ticket, _stream(cuda_stream))

    def sync_forward(self, hidden_states, cuda_stream=None):
        """Wait (on a GPU its stream does), and return [tokens, hidden] where hidden_states are. With
        deferred experts, those of the layer before are in it, and this layer's least weighted ones
        are not."""
        if self._call is None:
            raise ValueError(f"layer {self.layer_idx}: sync_forward without submit_forward")
        (ticket, out, later, x), self._call = self._call, None
        is_cpu = x.device.type == "cpu"

        def to_device(t):
            return t if is_cpu else x.new_empty(x.shape).copy_(t, non_blocking=True)

        self._wait(ticket, is_cpu, cuda_stream)
        result = to_device(out)
        before = _deferred.pop(self.layer_idx - 1, None)
        if before is not None and tuple(before[2].shape) == tuple(out.shape):
            before[0]._wait(before[1], is_cpu, cuda_stream)
            result.add_(to_device(before[2]))
        if later is not None:
            _deferred[self.layer_idx] = self, ticket + 1, later
        return result

    def forward(self, hidden_states, topk_ids, topk_weights, cuda_stream=None):
        self.submit_forward(hidden_states, topk_ids, topk_weights, cuda_stream)
        return self.sync_forward(hidden_states, cuda_stream)

    def select_deferred_experts(self, expert_ids, expert_scores, protected_k):
        """Ids [tokens, topk] in two: of each token the protected_k of largest score now, the others
        later; -1 stands for the rest. No deferred ids: None."""
        protected_k = max(0, min(int(protected_k), expert_ids.shape[1]))
        order = expert_scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        is_now = order < protected_k
        return expert_ids.masked_fill(~is_now, -1), expert_ids.masked_fill(is_now, -1)

    def submit_write_weight_scale_to_buffer(self, *_, **__):
        raise NotImplementedError("weights are not written in a GPU's layout here: leave "
                                  "--kt-gpu-prefill-token-threshold unset")

    sync_write_weight_scale_to_buffer = submit_write_weight_scale_to_buffer

    # ---- of the process ----

    @staticmethod
    def set_capture_batch_sizes(capture_bs):
        """Numbers of tokens that graphs will be captured for: their pinned memory stays, and captures of
        others are refused."""
        _capture_sizes[:] = capture_bs

    @staticmethod
    def get_capture_batch_sizes():
        return list(_capture_sizes)

    @staticmethod
    def clear_buffer_cache():
        """Give pinned memory back; the graphs that point to it must be gone."""
        _deferred.clear()
        _pinned.clear()


def generate_gpu_experts_masks(activation_freq, num_gpu_experts):
    """bool [layers, experts]: the num_gpu_experts most frequent of all layers together; of equal
    ones the first."""
    flat = activation_freq.reshape(-1).to("cpu")
    kept = max(0, min(int(num_gpu_experts), flat.shape[0]))
    order = flat.argsort(descending=True, stable=True).argsort()
    return (order < kept).view(activation_freq.shape)


__all__ = ["KTMoEWrapper", "generate_gpu_experts_masks", "METHODS"]
