# SPDX-License-Identifier: Apache-2.0
"""Expert layers for other engines."""

import threading
from array import array
from ctypes import byref, c_int64, c_uint8, c_uint64, sizeof

from . import _native as n
from ._native import lib
from .tensors import BYTES, tensor

_FLOATS = {"F32": 0, "BF16": 1}


class Team(n.Owned):
    """Threads that layers share. Any thread may use it. memory_nodes: over which experts are cut, 0 =
    those that the threads' cores belong to, 1 = experts stay whole, n = groups of threads."""

    _end = "kt_moe_team_destroy"

    def __init__(self, threads=0, table=None, deterministic=False, exact_acts=False, memory_nodes=0):
        super().__init__()
        o = n.TeamOptions()
        lib.kt_moe_team_options_init(byref(o), sizeof(o))
        o.n_threads, o.table = threads, n.text(table)
        o.deterministic, o.exact_acts = deterministic, exact_acts
        o.memory_nodes = memory_nodes
        lib.kt_moe_team_create(byref(o), byref(self._handle))


_default = None
_lock = threading.Lock()


def default_team():
    """The team of layers that name none: all usable cores, made when first asked for."""
    global _default
    with _lock:
        if _default is None:
            _default = Team()
        return _default


class MoE(n.Owned):
    """The routed experts of one layer. Any thread may call it; calls of all layers of a team run
    one after the other, in the order in which they were submitted."""

    _end = "kt_moe_destroy"

    def __init__(self, experts, topk, hidden, intermediate, weights="native", max_tokens=512,
                 activation="swiglu", team=None, swiglu_limit=0.0, swiglu_alpha=0.0):
        super().__init__()
        o = n.MoeOptions()
        lib.kt_moe_options_init(byref(o), sizeof(o))
        o.experts, o.topk, o.hidden, o.intermediate = experts, topk, hidden, intermediate
        o.max_tokens, o.weights, o.activation = max_tokens, n.text(weights), n.text(activation)
        o.swiglu_limit, o.swiglu_alpha = swiglu_limit, swiglu_alpha
        lib.kt_moe_create((team or default_team())._pointer(), byref(o), byref(self._handle))
        self.experts, self.topk, self.hidden, self.intermediate = experts, topk, hidden, intermediate
        self._n_ids = experts
        self._in_flight = {}  # ticket: what it reads and writes; of streams the last such call's

    def load(self, model, layer):
        """Load the experts of a model's layer: a folder, a GGUF file or a bundled name."""
        lib.kt_moe_load(self._pointer(), n.text(model), layer)

    def load_tensors(self, tensors, packing=None):
        """Load from memory: {name: tensor}, names as in kt/moe.h ("0.gate_proj.weight"). The layer
        keeps a copy of its own. packing: of qweight tensors, "awq", "gptq" or "gptq_v2"."""
        found = {name: tensor(t) for name, t in tensors.items()}
        list_of = (n.MoeTensor * len(found))()
        for to, (name, t) in zip(list_of, found.items()):
            if len(t.shape) > 4:
                raise ValueError(f"{name}: {len(t.shape)} dimensions, expected at most 4")
            rows = t.rows(name)
            to.name, to.dtype, to.rank, to.data = name.encode(), t.dtype.encode(), len(t.shape), t.address
            for i, size in enumerate(t.shape):
                to.shape[i] = size
            for i in range(len(t.shape) - 2):
                if t.strides[i] != t.strides[i + 1] * t.shape[i + 1]:
                    raise ValueError(f"{name}: its matrices are not one behind the other")
            if t.dtype in BYTES and len(t.shape) > 1:
                to.row_bytes = rows * BYTES[t.dtype]
        lib.kt_moe_load_from_tensors(self._pointer(), list_of, len(found), n.text(packing))

    def _rows(self, x, expert_ids, route_weights, out, accumulate, stream):
        x, ids, weights, out = (tensor(t) for t in (x, expert_ids, route_weights, out))
        tokens = x.shape[0] if len(x.shape) == 2 else -1
        for name, t, width in (("x", x, self.hidden), ("expert_ids", ids, self.topk),
                               ("route_weights", weights, self.topk), ("out", out, self.hidden)):
            if t.shape != (tokens, width):
                raise ValueError(f"{name}: shape {t.shape}, expected ({max(tokens, 0)}, {width})")
        for name, t, types in (("x", x, _FLOATS), ("out", out, _FLOATS), ("route_weights", weights, ("F32",)),
                               ("expert_ids", ids, ("I32", "I64"))):
            if t.dtype not in types:
                raise TypeError(f"{name}: {t.dtype}, expected {' or '.join(types)}")
        for name, t in (("expert_ids", ids), ("route_weights", weights)):
            if tokens > 1 and t.rows(name) != self.topk:
                raise ValueError(f"{name}: expected a dense matrix")
        rows = n.MoeRows(tokens=tokens, x=x.address, expert_id=ids.address,
                         route_weight=weights.address, out=out.address, x_type=_FLOATS[x.dtype],
                         out_type=_FLOATS[out.dtype], id_bytes=BYTES[ids.dtype],
                         accumulate=accumulate, stream=stream)
        if tokens > 1:
            rows.ldx, rows.ldo = x.rows("x"), out.rows("out")
        return rows, (x, ids, weights, out)

    def submit(self, x, expert_ids, route_weights, out, accumulate=False, stream=None, deferred=0,
               deferred_out=None):
        """Queue a call; the ticket is for sync. x and out [tokens, hidden] F32 or BF16, expert_ids
        [tokens, topk] I32 or I64 (-1 = none), route_weights [tokens, topk] F32: torch tensors,
        DLPack, or kt.tensor of a buffer. They are kept until sync. With deferred = n, of each token
        the n experts of least weight go to deferred_out (as out), done with the ticket after.
        stream: a CUDA stream's handle (1 = the default stream); all tensors are in host memory that
        the stream fills, and the ticket is for sync_stream."""
        rows, kept = self._rows(x, expert_ids, route_weights, out, accumulate, stream)
        ticket = c_uint64()
        if deferred:
            later = tensor(deferred_out)
            if (later.shape, later.dtype, later.strides) != (kept[3].shape, kept[3].dtype, kept[3].strides):
                raise ValueError(f"deferred_out: {later.dtype} {later.shape}, expected as out: "
                                 f"{kept[3].dtype} {kept[3].shape}")
            rows.n_deferred, rows.deferred_out = deferred, later.address
            kept += (later,)
        lib.kt_moe_submit(self._pointer(), byref(rows), byref(ticket))
        self._in_flight[ticket.value + bool(deferred)] = kept
        return ticket.value

    def sync(self, ticket=None):
        """Wait for a call without a stream, and those before it; None = all of this layer."""
        last_of_host = (1 << 63) - 1 if ticket is None else ticket
        tickets = [t for t in list(self._in_flight) if t <= last_of_host]
        last = max(tickets, default=None) if ticket is None else ticket
        if last is not None:
            lib.kt_moe_sync(self._pointer(), last)
        for t in tickets:
            self._in_flight.pop(t, None)

    def announce(self, tokens):
        """The numbers of tokens whose calls will be captured: others are refused in captures, and
        what captures need is taken now. [] = any."""
        list_of = (c_int64 * len(tokens))(*tokens)
        lib.kt_moe_announce(self._pointer(), list_of, len(tokens))

    def sync_stream(self, ticket, stream):
        """Have a CUDA stream wait for a call that was submitted with one."""
        lib.kt_moe_sync_stream(self._pointer(), ticket, stream)

    def forward(self, x, expert_ids, route_weights, out=None, accumulate=False, stream=None):
        """Compute now. out None = a new F32 Tensor over an array."""
        if out is None:
            shape = tensor(x).shape
            out = tensor(array("f", bytes(4 * shape[0] * self.hidden)), "F32", (shape[0], self.hidden))
        rows, _ = self._rows(x, expert_ids, route_weights, out, accumulate, stream)
        lib.kt_moe_forward(self._pointer(), byref(rows))
        return out

    def set_map(self, physical_to_logical):
        """expert_id p means expert physical_to_logical[p] from now on; None = itself."""
        m = None if physical_to_logical is None else n.ids(physical_to_logical)
        lib.kt_moe_set_map(self._pointer(), m, len(m) if m is not None else 0)
        self._n_ids = len(m) if m is not None else self.experts

    def set_mask(self, elsewhere):
        """elsewhere[p]: expert_id p is computed by somebody else from now on; None = none is."""
        if elsewhere is not None:
            elsewhere = [bool(v) for v in elsewhere]
            if len(elsewhere) != self._n_ids:
                raise ValueError(f"a mask of {len(elsewhere)} ids, expected {self._n_ids}")
            elsewhere = (c_uint8 * len(elsewhere))(*elsewhere)
        lib.kt_moe_set_mask(self._pointer(), elsewhere)

    def counts(self):
        """Calls, tokens and rows so far, with the rows of each expert: a dict."""
        out = n.MoeCounts(size=sizeof(n.MoeCounts))
        rows = (c_int64 * self.experts)()
        lib.kt_moe_count(self._pointer(), byref(out), rows)
        found = {name: getattr(out, name) for name, _ in out._fields_ if name != "size"}
        return dict(found, rows_of_expert=list(rows))
