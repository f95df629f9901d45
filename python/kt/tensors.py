# SPDX-License-Identifier: Apache-2.0
"""Where other libraries' numbers lie: torch tensors (data_ptr), DLPack, Python's buffers."""

import ctypes
from ctypes import Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, POINTER


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, [ctypes.py_object, c_char_p]

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
         "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "BOOL": 1}
_torch = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
          "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3",
          "float8_e8m0fnu": "F8_E8M0", "float64": "F64"}
_dlpack = {(0, 64): "I64", (0, 32): "I32", (0, 16): "I16", (0, 8): "I8", (1, 8): "U8",
           (1, 16): "U16", (1, 32): "U32", (1, 64): "U64", (2, 64): "F64", (2, 32): "F32",
           (2, 16): "F16", (4, 16): "BF16", (6, 8): "BOOL"}
_buffer = {"f": "F32", "d": "F64", "e": "F16", "b": "I8", "B": "U8", "h": "I16", "H": "U16",
           "i": "I32", "I": "U32", "q": "I64", "l": "I64", "Q": "U64", "L": "U64", "?": "BOOL"}


class Tensor:
    """Memory of somebody else: address, dtype (as safetensors spell it), shape, strides in
    elements. Keeps its owner alive."""

    def __init__(self, owner, address, dtype, shape, strides):
        self.owner, self.address, self.dtype = owner, address, dtype
        self.shape, self.strides = tuple(shape), tuple(strides)

    def rows(self, name):
        """Elements from row to row of a matrix whose rows are dense."""
        if self.shape and self.shape[-1] > 1 and self.strides[-1] != 1:
            raise ValueError(f"{name}: its rows are not dense (strides {self.strides})")
        return self.strides[-2] if len(self.shape) > 1 else (self.shape or (1,))[-1]


def _dense(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def tensor(source, dtype=None, shape=None):
    """The memory of a torch tensor, of anything with __dlpack__, or of a buffer (array.array,
    bytearray, ctypes). dtype and shape say what it is meant as, where it cannot say so itself:
    tensor(array("H", ...), "BF16", (4, 64)); then it must be dense."""
    if isinstance(source, Tensor):
        found = source
    elif hasattr(source, "data_ptr"):
        if getattr(getattr(source, "device", None), "type", "cpu") != "cpu":
            raise ValueError(f"a tensor on {source.device}, expected one in host memory")
        found = Tensor(source, source.data_ptr(), _torch.get(str(source.dtype).split(".")[-1]),
                       source.shape, source.stride())
    elif hasattr(source, "__dlpack__"):
        found = _of_dlpack(source)
    else:
        found = _of_buffer(source)
    if dtype is None and shape is None:
        if found.dtype is None:
            raise TypeError(f"numbers of {type(source).__name__} are of no type that is known here")
        return found
    if list(found.strides) != _dense(found.shape):
        raise ValueError("only dense memory can be meant as something else")
    shape = tuple(found.shape if shape is None else shape)
    return Tensor(found.owner, found.address, dtype or found.dtype, shape, _dense(shape))


def _of_dlpack(source):
    capsule = source.__dlpack__()
    t = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    if t.device_type != 1:
        raise ValueError(f"a tensor on DLPack device {t.device_type}, expected host memory (1)")
    shape = t.shape[: t.ndim]
    strides = t.strides[: t.ndim] if t.strides else _dense(shape)
    dtype = _dlpack.get((t.code, t.bits)) if t.lanes == 1 else None
    return Tensor((source, capsule), (t.data or 0) + t.byte_offset, dtype, shape, strides)


def _of_buffer(source):
    view = memoryview(source)
    if not view.c_contiguous:
        raise ValueError("a buffer with gaps, expected a dense one")
    # ctypes can take the address of read-only memory through its bytes object alone
    raw = (ctypes.c_char * view.nbytes).from_buffer(source) if not view.readonly else bytes(view)
    address = ctypes.addressof(raw) if not view.readonly else ctypes.cast(raw, c_void_p).value
    return Tensor((source, raw), address, _buffer.get(view.format.lstrip("<=@")), view.shape,
                  _dense(view.shape))
