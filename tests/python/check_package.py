# SPDX-License-Identifier: Apache-2.0
"""The installed package: check_package.py MODEL_FOLDER. Plain assertions; exits with 0 when all hold."""

import ctypes
import math
import os
import random
import sys
import threading
from array import array

import kt

MODEL = sys.argv[1]


def refuses(status, says, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kt.Error as e:
        assert e.status == status and says in str(e), (e.status, str(e))
    else:
        raise AssertionError(f"{says}: was not refused")


def raises(kind, says, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as e:
        assert says in str(e), str(e)
    else:
        raise AssertionError(f"{says}: was not raised")


class DLPackArray:
    """What numpy and torch do, with ctypes alone: F32 in host memory, rows `pad` floats apart."""

    def __init__(self, values, shape, pad=0):
        from kt.tensors import _DLTensor
        self.data = (ctypes.c_float * (shape[0] * (shape[1] + pad)))()
        for r in range(shape[0]):
            self.data[r * (shape[1] + pad) : r * (shape[1] + pad) + shape[1]] = list(
                values[r * shape[1] : (r + 1) * shape[1]])
        self.shape = (ctypes.c_int64 * 2)(*shape)
        self.strides = (ctypes.c_int64 * 2)(shape[1] + pad, 1)
        self.t = _DLTensor(ctypes.addressof(self.data), 1, 0, 2, 2, 32, 1, self.shape, self.strides, 0)

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.t), b"dltensor", None)


def engines():
    need = kt.plan(MODEL, context=128)
    assert need["fits"] and need["context"] == 128 and need["weight_bytes"] > 1 << 20
    refuses("KT_E_NOT_FOUND", "/nowhere", kt.Engine, "/nowhere")
    refuses("KT_E_INVALID", "weights 'int5'", kt.Engine, MODEL, weights="int5")
    raises(TypeError, "'speed'", kt.Engine, MODEL, speed=2)
    warned = []
    with kt.Engine(MODEL, context=128, table="", deterministic=True, warn=warned.append) as e:
        a, b = e.tokenizer.encode("In the beginning"), e.tokenizer.encode("And it came")
        assert e.tokenizer.decode(a) == "In the beginning" and len(e.tokenizer) == e.vocab
        one, two = e.sequence(64), e.sequence(64)
        both = e.step([(one, a), (two, b)])
        alone = e.step([(e.sequence(64), a)])[0]
        assert bytes(both[0]) == bytes(alone), "a batch changes bits"
        assert (len(one), len(two)) == (len(a), len(b))
        fork = one.fork()
        assert e.step([(fork, a[:1])], logits=False) == [] and len(fork) == len(a) + 1
        assert fork.truncate(2) == 2
        refuses("KT_E_INVALID", "token 0 is", e.step, [(two, [e.vocab])])
        banned = kt.Sampler(e.vocab, bias={kt.Sampler(e.vocab).next(alone): -100})
        assert banned.next(alone) != kt.Sampler(e.vocab).next(alone)
        chat = kt.Chat(MODEL)
        messages = [{"role": "user", "content": "Hello"}]
        assert e.tokenizer.encode(chat.render(messages)) == chat.encode(e.tokenizer, messages)
    raises(ValueError, "was closed", one.truncate, 1)
    assert kt.machine()["usable_cores"] >= 1


def layers():
    E, K, H, N, T = 3, 2, 64, 64, 5
    normal = random.Random(1)
    numbers = lambda n: [normal.gauss(0, 0.2) for _ in range(n)]
    bf16 = lambda xs: array("H", [array("I", array("f", [x]).tobytes())[0] >> 16 for x in xs])
    back = lambda hs: list(array("f", array("I", [h << 16 for h in hs]).tobytes()))
    w = {}
    for e in range(E):
        for p, name in enumerate(("gate_proj", "up_proj", "down_proj")):
            w[e, p] = bf16(numbers(N * H))
    moe = kt.MoE(E, K, H, N, max_tokens=4, team=kt.Team(threads=1, deterministic=True))
    x = back(bf16(numbers(T * H)))
    ids = [[t % E, (t + 1) % E] for t in range(T)]
    weights = [[0.25 + 0.1 * t, 0.5] for t in range(T)]
    call = (kt.tensor(array("f", x), shape=(T, H)),
            kt.tensor(array("q", sum(ids, [])), shape=(T, K)),
            kt.tensor(array("f", sum(weights, [])), shape=(T, K)))
    refuses("KT_E_INVALID", "no weights yet", moe.forward, *call)
    moe.load_tensors({f"{e}.{name}.weight": kt.tensor(w[e, p], "BF16", (N, H))
                      for e in range(E) for p, name in enumerate(("gate_proj", "up_proj", "down_proj"))})
    out = moe.forward(*call)
    found = list(out.owner[0])
    want = []
    f = {key: back(v) for key, v in w.items()}
    for t in range(T):
        row, total = x[t * H : (t + 1) * H], [0.0] * H
        for e, weight in zip(ids[t], weights[t]):
            dot = lambda p, n, v: sum(a * b for a, b in zip(f[e, p][n * len(v) : (n + 1) * len(v)], v))
            gate = [dot(0, n, row) for n in range(N)]
            h = [g / (1 + math.exp(-g)) * dot(1, n, row) for n, g in enumerate(gate)]
            for i in range(H):
                total[i] += weight * dot(2, i, h)
        want += total
    off = sum(abs(a - b) for a, b in zip(found, want)) / sum(map(abs, want))
    assert 0 < off < 0.005, off

    moved = moe.forward(DLPackArray(x, (T, H), pad=3), *call[1:])
    assert list(moved.owner[0]) == found, "DLPack with gaps between rows differs"
    moe.set_map([1, 2, 0])
    mapped = kt.tensor(array("q", [(i - 1) % E for i in sum(ids, [])]), shape=(T, K))
    assert list(moe.forward(call[0], mapped, call[2]).owner[0]) == found
    moe.set_map(None)
    moe.set_mask([True, True, True])
    assert not any(moe.forward(*call).owner[0])
    raises(ValueError, "expected 3", moe.set_mask, [True])
    moe.set_mask(None)
    results = [kt.tensor(array("f", bytes(4 * T * H)), shape=(T, H)) for _ in range(8)]
    threads = [threading.Thread(target=lambda o=o: moe.sync(moe.submit(*call, o))) for o in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(list(o.owner[0]) == found for o in results)
    assert moe.counts()["calls"] == 12 and sum(moe.counts()["rows_of_expert"]) == 11 * T * K
    raises(TypeError, "expert_ids: F32", moe.forward, call[0], call[2], call[2])
    raises(ValueError, "x: shape", moe.forward, call[1], call[1], call[2])
    refuses("KT_E_INVALID", "expected NULL", moe.forward, *call, stream=4096)
    other = kt.MoE(16, 4, 256, 128, weights="int4")
    other.load(MODEL, 1)
    refuses("KT_E_NOT_FOUND", "layer 77", other.load, MODEL, 77)


class TorchLike:
    """As much of a torch tensor as kt.kernel asks for: F32 or I64 in host memory."""

    class device:
        type = "cpu"

    def __init__(self, values, shape, code="f"):
        self.values, self.shape = array(code, values), tuple(shape)
        self.dtype = {"f": "torch.float32", "q": "torch.int64", "b": "torch.bool"}[code]

    def data_ptr(self):
        return self.values.buffer_info()[0]

    def stride(self):
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def new_empty(self, shape, device=None, pin_memory=False):
        code = self.values.typecode
        kind = TorchLike if device == "cpu" or type(self) is TorchLike else GpuLike
        return kind(bytes(array(code).itemsize * math.prod(shape)), shape, code)

    def copy_(self, other, non_blocking):
        copy = ctypes.CDLL(os.environ["KT_CUDA_DRIVER"]).fake_stream_copy
        copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
        copy(GpuLike.stream, self.data_ptr(), other.data_ptr(), len(self.values) * self.values.itemsize)
        return self

    def add_(self, other):
        for i, value in enumerate(other.values):
            self.values[i] += value

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return iter(self.values)


def kernels():
    from kt.kernel import KTMoEWrapper
    E, K, H, N, T = 4, 2, 64, 32, 3
    normal = random.Random(2)
    numbers = lambda n: [normal.gauss(0, 0.2) for _ in range(n)]
    stacks = [TorchLike(numbers(E * N * H), s) for s in ((E, N, H), (E, N, H), (E, H, N))]
    sizes = dict(num_experts=E, num_experts_per_tok=K, hidden_size=H, moe_intermediate_size=N,
                 cpuinfer_threads=1, threadpool_count=1, weight_path="/nowhere",
                 chunked_prefill_size=2, method="BF16")
    call = (TorchLike(numbers(T * H), (T, H)), TorchLike([0, 1, 2, 3, 3, 0], (T, K), "q"),
            TorchLike([0.75, 0.25] * T, (T, K)))
    off = lambda a, b: max(map(abs, (x - y for x, y in zip(a.values, b))))

    w = KTMoEWrapper(0, gpu_experts_mask=TorchLike([0] * E, (E,), "b"), **sizes)
    w.load_weights_from_tensors(*stacks)
    all_of = w.forward(*call, 0)
    assert any(all_of.values) and w.num_gpu_experts == 0
    w.gpu_experts_mask.values[3] = 1  # in place, as SGLang does while it serves
    cpu = w.forward(*call, 0)
    assert cpu.values[:H] == all_of.values[:H] and cpu.values[H:] != all_of.values[H:]
    first = KTMoEWrapper(0, num_gpu_experts=3, **sizes)
    first.load_weights_from_tensors(*stacks)
    gpu = first.forward(*call, 0)
    w.gpu_experts_mask.values[:] = array("b", [0, 0, 0, 1])
    assert off(all_of, map(sum, zip(w.forward(*call, 0).values, gpu.values))) < 1e-5
    # Expert p of a call is expert map[p] of the weights.
    turned = KTMoEWrapper(0, **sizes)
    turned.load_weights_from_tensors(*stacks, TorchLike([1, 2, 3, 0], (E,), "q"))
    ids = TorchLike([(e - 1) % E for e in call[1].values], (T, K), "q")
    assert turned.forward(call[0], ids, call[2], 0).values == all_of.values
    # What one layer defers, the next one's sum has.
    parts = [KTMoEWrapper(i, max_deferred_experts_per_token=1 - i, **sizes) for i in (0, 1)]
    for part in parts:
        part.load_weights_from_tensors(*stacks)
    early = parts[0].forward(*call, 0)
    late = parts[1].forward(*call, 0)
    assert off(early, all_of.values) > 1e-3
    assert off(all_of, (a + b - c for a, b, c in zip(early.values, late.values, all_of.values))) < 1e-5
    asked_nothing = KTMoEWrapper(0, num_gpu_experts=None, **dict(sizes, cpuinfer_threads=None))
    assert asked_nothing.num_gpu_experts == 0
    raises(ValueError, "submit_forward twice", lambda: [w.submit_forward(*call) for _ in range(2)])
    w.sync_forward(call[0])
    raises(ValueError, "without submit_forward", w.sync_forward, call[0])
    raises(ValueError, "method 'INT3'", KTMoEWrapper, 0, **dict(sizes, method="INT3"))
    raises(ValueError, "num_experts is 0", KTMoEWrapper, 0, **dict(sizes, num_experts=0))
    raises(ValueError, "fine-tuning", KTMoEWrapper, 0, mode="sft", **sizes)
    raises(TypeError, "'num_gpus'", KTMoEWrapper, 0, num_gpus=1, **sizes)
    raises(ValueError, "gate_proj: shape", w.load_weights_from_tensors, *stacks[::-1])
    refuses("KT_E_NOT_FOUND", "/nowhere", w.load_weights)
    raises(NotImplementedError, "threshold", w.submit_write_weight_scale_to_buffer)
    bundled = KTMoEWrapper(2, **dict(sizes, num_experts=16, num_experts_per_tok=4, hidden_size=256,
                                     moe_intermediate_size=128, weight_path=MODEL, method="AMXINT4"))
    bundled.load_weights(range(16))


class GpuLike(TorchLike):
    """The same of a GPU, whose copies happen when the pretended stream comes to them."""

    stream = None

    class device:
        type = "cuda"

    def view(self, rows, width):
        return GpuLike(self.values, (len(self.values) // width, width), self.values.typecode)


def streams():
    from kt.kernel import KTMoEWrapper
    driver = ctypes.CDLL(os.environ["KT_CUDA_DRIVER"])
    driver.fake_stream_make.restype = ctypes.c_void_p
    for name in ("hold", "sync", "end", "capture", "replay"):
        getattr(driver, "fake_stream_" + name).argtypes = [ctypes.c_void_p, ctypes.c_int]
    s = GpuLike.stream = driver.fake_stream_make()
    E, K, H, N, T = 4, 2, 64, 32, 3
    normal = random.Random(3)
    numbers = lambda n: [normal.gauss(0, 0.2) for _ in range(n)]
    stacks = [TorchLike(numbers(E * N * H), s) for s in ((E, N, H), (E, N, H), (E, H, N))]
    layers = []
    for i in range(3):
        layers.append(KTMoEWrapper(i, E, K, H, N, cpuinfer_threads=1, chunked_prefill_size=2,
                                   max_deferred_experts_per_token=int(i < 2), method="BF16"))
        layers[i].load_weights_from_tensors(*stacks)
    KTMoEWrapper.set_capture_batch_sizes([T])
    ids, weights = ([0, 1, 2, 3, 3, 0], [0.75, 0.25] * T)

    def through(kind, x, stream):
        call = kind(x, (T, H)), kind(ids, (T, K), "q"), kind(weights, (T, K))
        return call, [layer.forward(*call, stream) for layer in layers]

    x = numbers(T * H)
    want = through(TorchLike, x, None)[1]
    driver.fake_stream_hold(s, 1)
    _, got = through(GpuLike, x, s)
    assert not any(any(g.values) for g in got), "something was done while the stream was held"
    driver.fake_stream_hold(s, 0)
    driver.fake_stream_sync(s, 0)
    # the stand-in adds at once, so what an earlier layer deferred comes only to real tensors
    assert got[0].values == want[0].values and any(got[2].values)
    driver.fake_stream_capture(s, 1)
    call, replayed = through(GpuLike, numbers(T * H), s)
    driver.fake_stream_capture(s, 0)
    call[0].values[:] = array("f", x)
    for _ in range(3):
        replayed[0].values[:] = array("f", bytes(4 * T * H))
        driver.fake_stream_replay(s, 0)
        driver.fake_stream_sync(s, 0)
        assert replayed[0].values == want[0].values
    raises(ValueError, "cuda_stream is None", layers[0].submit_forward, *call)
    KTMoEWrapper.clear_buffer_cache()
    for layer in layers:
        layer.moe.close()
    driver.fake_stream_end(s, 0)


engines()
layers()
kernels()
if os.environ.get("KT_CUDA_DRIVER"):
    streams()
