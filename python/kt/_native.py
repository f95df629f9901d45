# SPDX-License-Identifier: Apache-2.0
"""The library's functions and structures (include/kt/*.h), declared for ctypes."""

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_float,
                    c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p, sizeof)

ABI_VERSION = 1


class Error(Exception):
    """What the library refused: `status` is its name ("KT_E_FORMAT"), the text says why."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Err(Structure):
    _fields_ = [("status", c_int), ("message", c_char * 512)]


WARN = CFUNCTYPE(None, c_void_p, c_char_p)
CANCEL = CFUNCTYPE(c_int, c_void_p)


class ModelOptions(Structure):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("weights", c_char_p), ("kv", c_char_p),
                ("numa", c_char_p), ("table", c_char_p), ("importance", c_char_p),
                ("context", c_int64), ("step_rows", c_int64), ("kv_bytes", c_uint64),
                ("n_threads", c_int32), ("deterministic", c_bool), ("exact_acts", c_bool),
                ("allow_nonfinite", c_bool), ("tokenizer_optional", c_bool),
                ("strict_tokenizer", c_bool), ("cancel", CANCEL), ("cancel_arg", c_void_p),
                ("warn", WARN), ("warn_arg", c_void_p)]


class ModelInfo(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("family", c_char_p), ("vocab", c_int64),
                ("hidden", c_int64), ("layers", c_int64), ("context", c_int64),
                ("step_rows", c_int64), ("n_threads", c_int32), ("n_eos", c_int32),
                ("eos", c_int64 * 8), ("weight_bytes", c_uint64), ("cache_bytes", c_uint64)]


class MemoryNeed(Structure):
    _fields_ = [("size", c_size_t), ("weight_bytes", c_uint64), ("staging_bytes", c_uint64),
                ("step_bytes", c_uint64), ("cache_bytes", c_uint64), ("logits_bytes", c_uint64),
                ("needed_bytes", c_uint64), ("available_bytes", c_uint64), ("context", c_int64),
                ("longest_context", c_int64), ("fits", c_bool)]


class Span(Structure):
    _fields_ = [("seq", c_void_p), ("first_row", c_int64), ("rows", c_int64), ("is_mark", c_bool)]


class Batch(Structure):
    _fields_ = [("rows", c_int64), ("token", POINTER(c_int32)), ("n_spans", c_int),
                ("spans", POINTER(Span)), ("n_out", c_int64), ("out_row", POINTER(c_int32))]


class Sampling(Structure):
    _fields_ = [("temperature", c_float), ("top_k", c_int32), ("top_p", c_float),
                ("min_p", c_float), ("repetition_penalty", c_float), ("presence_penalty", c_float),
                ("frequency_penalty", c_float), ("seed", c_uint64)]


class TokenBias(Structure):
    _fields_ = [("id", c_int32), ("bias", c_float)]


class TeamOptions(Structure):
    _fields_ = [("size", c_size_t), ("n_threads", c_int32), ("table", c_char_p),
                ("deterministic", c_bool), ("exact_acts", c_bool), ("memory_nodes", c_int32)]


class MoeOptions(Structure):
    _fields_ = [("size", c_size_t), ("experts", c_int64), ("topk", c_int64), ("hidden", c_int64),
                ("intermediate", c_int64), ("max_tokens", c_int64), ("weights", c_char_p),
                ("activation", c_char_p), ("swiglu_limit", c_float), ("swiglu_alpha", c_float)]


class MoeTensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("rank", c_int32), ("shape", c_int64 * 4),
                ("row_bytes", c_int64), ("data", c_void_p)]


class MoeRows(Structure):
    _fields_ = [("tokens", c_int64), ("x", c_void_p), ("expert_id", c_void_p),
                ("route_weight", c_void_p), ("out", c_void_p), ("ldx", c_int64), ("ldo", c_int64),
                ("x_type", c_int), ("out_type", c_int), ("id_bytes", c_int32),
                ("accumulate", c_bool), ("n_deferred", c_int32), ("deferred_out", c_void_p),
                ("stream", c_void_p)]


class MoeCounts(Structure):
    _fields_ = [("size", c_size_t), ("calls", c_int64), ("tokens", c_int64), ("rows_run", c_int64),
                ("rows_elsewhere", c_int64), ("rows_deferred", c_int64), ("memory_nodes", c_int64)]


class MachineInfo(Structure):
    _fields_ = [("size", c_size_t), ("brand", c_char * 64), ("microarch", c_char * 32),
                ("machine_class", c_char * 64), ("isa", c_char * 192), ("packages", c_int32),
                ("numa_nodes", c_int32), ("llc_groups", c_int32), ("cores", c_int32),
                ("pus", c_int32), ("usable_cores", c_int32), ("usable_pus", c_int32),
                ("memory_bytes", c_uint64), ("available_bytes", c_uint64), ("l2_bytes", c_uint64),
                ("llc_bytes", c_uint64), ("stream_gbs_1t", c_double), ("stream_gbs_all", c_double)]


P, ERR, IDS = c_void_p, POINTER(Err), POINTER(c_int32)

# Fallible functions: they return a status, and take an Err last.
CHECKED = {
    "kt_engine_load": [POINTER(ModelOptions), POINTER(P)],
    "kt_engine_model": [P, POINTER(ModelInfo)],
    "kt_engine_plan": [POINTER(ModelOptions), POINTER(MemoryNeed)],
    "kt_engine_step": [P, POINTER(Batch), POINTER(c_float), P],
    "kt_sequence_create": [P, c_int64, POINTER(P)],
    "kt_sequence_reserve": [P, c_int64],
    "kt_sequence_fork": [P, POINTER(P)],
    "kt_tokenizer_load": [c_char_p, POINTER(P)],
    "kt_tokenizer_encode": [P, c_char_p, c_size_t, c_bool, POINTER(IDS), POINTER(c_size_t)],
    "kt_tokenizer_decode": [P, IDS, c_size_t, c_bool, POINTER(P), POINTER(c_size_t)],
    "kt_sampler_create": [POINTER(Sampling), POINTER(TokenBias), c_size_t, c_int64, POINTER(P)],
    "kt_sampler_next": [P, POINTER(c_float), POINTER(c_uint64), POINTER(c_int32)],
    "kt_chat_format_open": [c_char_p, c_char_p, POINTER(P)],
    "kt_chat_render_json": [P, c_char_p, c_size_t, POINTER(P), POINTER(c_size_t)],
    "kt_chat_encode_json": [P, P, c_char_p, c_size_t, POINTER(IDS), POINTER(c_size_t)],
    "kt_machine_probe": [POINTER(MachineInfo)],
    "kt_moe_team_create": [POINTER(TeamOptions), POINTER(P)],
    "kt_moe_create": [P, POINTER(MoeOptions), POINTER(P)],
    "kt_moe_load": [P, c_char_p, c_int64],
    "kt_moe_load_from_tensors": [P, POINTER(MoeTensor), c_size_t, c_char_p],
    "kt_moe_submit": [P, POINTER(MoeRows), POINTER(c_uint64)],
    "kt_moe_sync_stream": [P, c_uint64, P],
    "kt_moe_announce": [P, POINTER(c_int64), c_size_t],
    "kt_moe_forward": [P, POINTER(MoeRows)],
    "kt_moe_set_map": [P, IDS, c_int64],
    "kt_moe_set_mask": [P, POINTER(c_uint8)],
    "kt_moe_count": [P, POINTER(MoeCounts), POINTER(c_int64)],
}

# The others: what they return, and their arguments.
PLAIN = {
    "kt_abi_version": (c_int, []),
    "kt_version": (c_char_p, []),
    "kt_free": (None, [P]),
    "kt_status_name": (c_char_p, [c_int]),
    "kt_model_options_init": (None, [POINTER(ModelOptions), c_size_t]),
    "kt_engine_destroy": (None, [P]),
    "kt_engine_tokenizer": (P, [P]),
    "kt_sequence_destroy": (None, [P]),
    "kt_sequence_length": (c_int64, [P]),
    "kt_sequence_reuse": (c_int64, [P, IDS, c_int64]),
    "kt_sequence_truncate": (c_int64, [P, c_int64]),
    "kt_tokenizer_destroy": (None, [P]),
    "kt_tokenizer_find": (c_int32, [P, c_char_p]),
    "kt_tokenizer_size": (c_int32, [P]),
    "kt_sampling_init": (None, [POINTER(Sampling)]),
    "kt_sampler_destroy": (None, [P]),
    "kt_sampler_accept_prompt": (c_int, [P, IDS, c_size_t]),
    "kt_chat_format_destroy": (None, [P]),
    "kt_moe_team_options_init": (None, [POINTER(TeamOptions), c_size_t]),
    "kt_moe_team_destroy": (None, [P]),
    "kt_moe_options_init": (None, [POINTER(MoeOptions), c_size_t]),
    "kt_moe_destroy": (None, [P]),
    "kt_moe_sync": (None, [P, c_uint64]),
}


def _checked(function):
    def call(*arguments):
        err = Err()
        status = function(*arguments, byref(err))
        if status != 0:
            raise Error(lib.kt_status_name(status).decode(), err.message.decode(errors="replace"))

    return call


class _Library:
    """libkt.so: $KT_LIBRARY, or the one in this package."""

    def __init__(self):
        path = os.environ.get("KT_LIBRARY") or os.path.join(os.path.dirname(__file__), "libkt.so")
        native = ctypes.CDLL(path)
        for name, (result, arguments) in PLAIN.items():
            function = getattr(native, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if self.kt_abi_version() != ABI_VERSION:
            raise ImportError(f"{path}: binary interface {self.kt_abi_version()}, "
                              f"expected {ABI_VERSION}")
        for name, arguments in CHECKED.items():
            function = getattr(native, name)
            function.restype, function.argtypes = c_int, arguments + [ERR]
            setattr(self, name, _checked(function))


lib = _Library()


def text(value):
    """A word or path for the library; None stays None."""
    return None if value is None else os.fsencode(value)


def ids(values):
    values = list(values)
    return (c_int32 * len(values))(*values)


class Owned:
    """A handle that is ended once: by close(), a with block, or with the object."""

    _end = None  # name of the function that ends it

    def __init__(self):
        self._handle = P()

    def _pointer(self):
        if not self._handle:
            raise ValueError(f"this {type(self).__name__} was closed")
        return self._handle

    def close(self):
        handle, self._handle = self._handle, P()
        if handle:
            getattr(lib, self._end)(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()
