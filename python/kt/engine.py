# SPDX-License-Identifier: Apache-2.0
"""Whole models: engine, sequences, tokenizer, sampler, chat format."""

import json
import weakref
from ctypes import byref, c_float, c_int32, c_size_t, c_uint64, POINTER, c_void_p, sizeof, string_at

from . import _native as n
from ._native import lib


def _options(model, weights, kv, table, numa, importance, context, step_rows, kv_bytes, threads,
             flags):
    o = n.ModelOptions()
    lib.kt_model_options_init(byref(o), sizeof(o))
    o.model, o.weights, o.kv, o.numa = (n.text(v) for v in (model, weights, kv, numa))
    o.table, o.importance = n.text(table), n.text(importance)
    o.context, o.step_rows, o.kv_bytes, o.n_threads = context, step_rows, kv_bytes, threads
    for name, value in flags.items():
        if name not in ("deterministic", "exact_acts", "allow_nonfinite", "tokenizer_optional",
                        "strict_tokenizer"):
            raise TypeError(f"unknown option {name!r}")
        setattr(o, name, bool(value))
    return o


def _fields(structure):
    return {name: getattr(structure, name) for name, *_ in structure._fields_ if name != "size"}


def plan(model, weights="native", kv="bf16", table=None, numa="auto", importance=None, context=0,
         step_rows=0, kv_bytes=0, threads=0, **flags):
    """The memory that a model would take here, in bytes, before anything is loaded: a dict."""
    o = _options(model, weights, kv, table, numa, importance, context, step_rows, kv_bytes, threads,
                 flags)
    need = n.MemoryNeed(size=sizeof(n.MemoryNeed))
    lib.kt_engine_plan(byref(o), byref(need))
    return _fields(need)


def machine():
    """This machine: a dict."""
    info = n.MachineInfo(size=sizeof(n.MachineInfo))
    lib.kt_machine_probe(byref(info))
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in _fields(info).items()}


class Tokenizer(n.Owned):
    """Text to token ids and back. Threads may share it."""

    _end = "kt_tokenizer_destroy"

    def __init__(self, path):
        super().__init__()
        lib.kt_tokenizer_load(n.text(path), byref(self._handle))

    @classmethod
    def _of(cls, engine):
        self = cls.__new__(cls)
        n.Owned.__init__(self)
        self._engine = engine  # whose it is
        self._handle = c_void_p(lib.kt_engine_tokenizer(engine._pointer()))
        return self

    def close(self):
        if hasattr(self, "_engine"):  # not ours to end
            self._handle = c_void_p()
        super().close()

    def encode(self, text, parse_special=True):
        data = text.encode()
        out, count = POINTER(c_int32)(), c_size_t()
        lib.kt_tokenizer_encode(self._pointer(), data, len(data), parse_special, byref(out),
                                byref(count))
        return _take_ids(out, count)

    def decode(self, tokens, skip_special=True):
        tokens = n.ids(tokens)
        out, size = c_void_p(), c_size_t()
        lib.kt_tokenizer_decode(self._pointer(), tokens, len(tokens), skip_special, byref(out),
                                byref(size))
        return _take_text(out, size)

    def find(self, text):
        """Id of a token by its exact text, or None."""
        token = lib.kt_tokenizer_find(self._pointer(), text.encode())
        return None if token < 0 else token

    def __len__(self):
        return lib.kt_tokenizer_size(self._pointer())


def _take_ids(out, count):
    ids = out[: count.value]
    lib.kt_free(out)
    return ids


def _take_text(out, size):
    text = string_at(out, size.value).decode()
    lib.kt_free(out)
    return text


class Chat(n.Owned):
    """How a model writes conversations. Threads may share it."""

    _end = "kt_chat_format_destroy"

    def __init__(self, model, template_file=None):
        super().__init__()
        lib.kt_chat_format_open(n.text(model), n.text(template_file), byref(self._handle))

    def render(self, messages, **members):
        """The prompt as text; members: tools, add_generation_prompt, ... (kt/chat.h)."""
        data = json.dumps(dict(members, messages=messages)).encode()
        out, size = c_void_p(), c_size_t()
        lib.kt_chat_render_json(self._pointer(), data, len(data), byref(out), byref(size))
        return _take_text(out, size)

    def encode(self, tokenizer, messages, **members):
        """The prompt as token ids, in which nothing of a user's text is a control token."""
        data = json.dumps(dict(members, messages=messages)).encode()
        out, count = POINTER(c_int32)(), c_size_t()
        lib.kt_chat_encode_json(self._pointer(), tokenizer._pointer(), data, len(data), byref(out),
                                byref(count))
        return _take_ids(out, count)


class Sampler(n.Owned):
    """Chooses tokens of one sequence; greedy unless told otherwise."""

    _end = "kt_sampler_destroy"

    def __init__(self, vocab, bias=None, prompt=(), **sampling):
        super().__init__()
        o = n.Sampling()
        lib.kt_sampling_init(byref(o))
        known = {name for name, _ in n.Sampling._fields_}
        for name, value in sampling.items():
            if name not in known:
                raise TypeError(f"unknown option {name!r}")
            setattr(o, name, value)
        bias = dict(bias or {})
        pairs = (n.TokenBias * len(bias))(*bias.items())
        lib.kt_sampler_create(byref(o), pairs, len(bias), vocab, byref(self._handle))
        prompt = n.ids(prompt)
        if lib.kt_sampler_accept_prompt(self._handle, prompt, len(prompt)) != 0:
            raise MemoryError("no memory for the prompt's tokens")

    def next(self, logits, mask=None):
        """The next token's id. mask: None, or a sequence of 64-bit words, bit i = token i may be."""
        token = c_int32()
        words = (c_uint64 * len(mask))(*mask) if mask is not None else None
        lib.kt_sampler_next(self._pointer(), logits, words, byref(token))
        return token.value


class Sequence(n.Owned):
    """One conversation's tokens in an engine."""

    _end = "kt_sequence_destroy"

    def __init__(self, engine, tokens=0):
        super().__init__()
        self._engine = engine
        lib.kt_sequence_create(engine._pointer(), tokens, byref(self._handle))
        engine._sequences.add(self)

    def reserve(self, tokens):
        lib.kt_sequence_reserve(self._pointer(), tokens)

    def reuse(self, tokens):
        """Of an empty sequence: take over the longest beginning that the cache has; its length."""
        tokens = n.ids(tokens)
        return lib.kt_sequence_reuse(self._pointer(), tokens, len(tokens))

    def truncate(self, length):
        return lib.kt_sequence_truncate(self._pointer(), length)

    def fork(self):
        other = Sequence.__new__(Sequence)
        n.Owned.__init__(other)
        other._engine = self._engine
        lib.kt_sequence_fork(self._pointer(), byref(other._handle))
        self._engine._sequences.add(other)
        return other

    def __len__(self):
        return lib.kt_sequence_length(self._pointer())


class Engine(n.Owned):
    """A loaded model. One thread at a time; the calling thread is bound to the first core."""

    _end = "kt_engine_destroy"

    def __init__(self, model, weights="native", kv="bf16", table=None, numa="auto", importance=None,
                 context=0, step_rows=0, kv_bytes=0, threads=0, warn=None, **flags):
        super().__init__()
        self._sequences = weakref.WeakSet()
        o = _options(model, weights, kv, table, numa, importance, context, step_rows, kv_bytes,
                     threads, flags)
        if warn:
            o.warn = n.WARN(lambda _, message: warn(message.decode(errors="replace")))
        lib.kt_engine_load(byref(o), byref(self._handle))
        info = n.ModelInfo(size=sizeof(n.ModelInfo))
        lib.kt_engine_model(self._handle, byref(info))
        for name in ("vocab", "hidden", "layers", "context", "step_rows", "weight_bytes",
                     "cache_bytes"):
            setattr(self, name, getattr(info, name))
        self.name, self.family, self.threads = info.name.decode(), info.family.decode(), info.n_threads
        self.eos = list(info.eos[: info.n_eos])
        self.tokenizer = (Tokenizer._of(self) if lib.kt_engine_tokenizer(self._handle) else None)

    def sequence(self, tokens=0):
        """An empty sequence with pages for so many tokens."""
        return Sequence(self, tokens)

    def step(self, rows, logits=True):
        """One step: rows is [(sequence, tokens), ...]; each sequence goes on with its tokens, all
        together at most step_rows. Gives the logits after the last token of each, a list of arrays
        of `vocab` floats (memory of their own). logits: False = none, or a bool for each."""
        wanted = [bool(logits)] * len(rows) if isinstance(logits, bool) else list(logits)
        token, spans, out = [], (n.Span * len(rows))(), []
        for i, (sequence, tokens) in enumerate(rows):
            tokens = list(tokens)
            spans[i] = n.Span(sequence._pointer(), len(token), len(tokens), False)
            token += tokens
            if wanted[i]:
                out.append(len(token) - 1)
        values = [(c_float * self.vocab).from_buffer(part) for part in self._parts(len(out))]
        lib.kt_engine_step(
            self._pointer(),
            byref(n.Batch(len(token), n.ids(token), len(rows), spans, len(out), n.ids(out))),
            values[0] if values else None, None)
        return values

    def _parts(self, count):
        """`count` pieces of one block of memory, each of a row of logits."""
        row = sizeof(c_float) * self.vocab
        block = memoryview(bytearray(row * count))
        return [block[i * row : (i + 1) * row] for i in range(count)]

    def close(self):
        for sequence in list(self._sequences):
            sequence.close()
        super().close()
