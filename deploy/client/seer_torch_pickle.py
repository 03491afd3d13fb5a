"""Reads the pickles that checkpoint-engine sends to a worker, and gives plain data: nothing that a pickle names is imported or called.

Used by seer_checkpoint_engine only. A message is one of

    (function, arguments)   of torch's reduce_tensor for a buffer of bytes: SharedMemory or DeviceMemory
    [{name, dtype, shape, offset}, ...]   the tensors of a bucket, in that buffer: a list of Tensor
    None                    the end of a phase
    RuntimeError(text)      the sender gives up: GivenUp

and everything else is refused with a BadMessage. A pickle is a program. read_message() allows it the instructions that build such
values, and the names in _NAMES, which stand here for records of this file.
"""
import io
import math
import pickle
import pickletools
import re
import reprlib
from dataclasses import dataclass
from typing import Any, List, Tuple, Union

MESSAGE_BYTES_MAX = 16 << 20
DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}  # those that `seer serve` takes; bytes of an element
TORCH_ELSE = ("uint8", "int8", "int16", "int32", "int64", "bool", "float64", "float8_e4m3fn", "float8_e5m2")  # named when refused


class BadMessage(ValueError):
    """What is wrong with a message, in one sentence."""


@dataclass(frozen=True)
class SharedMemory:
    """A file of this name in /dev/shm has the buffer, after torch's own header."""
    name: str
    buffer_bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """Arguments of torch's rebuild_cuda_tensor, checked; classes and dtype of torch by name. [6] is the sender's number of the device."""
    arguments: Tuple[Any, ...]
    buffer_bytes: int


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int  # byte in the buffer
    end: int


@dataclass(frozen=True)
class GivenUp:
    reason: str


Message = Union[SharedMemory, DeviceMemory, List[Tensor], GivenUp, None]


def read_message(data: bytes) -> Message:
    value = _unpickle(data)
    if value is None or isinstance(value, GivenUp):
        return value
    if isinstance(value, tuple):
        return _buffer_of(value)
    if isinstance(value, list):
        return [_tensor_of(item) for item in value]
    raise BadMessage(f"the message is {_shown(value)}: expected torch's handle of a buffer, a list of tensors, None or a RuntimeError")


# ---- the pickle as plain values --------------------------------------------------------------------------------------------------------

# Without BUILD, NEWOBJ and their like, which set attributes; and without PUT, which takes memory for the number that it names.
_INSTRUCTIONS = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES EMPTY_LIST "
    "APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GLOBAL STACK_GLOBAL REDUCE MEMOIZE BINGET "
    "LONG_BINGET".split())


@dataclass(frozen=True)
class _Name:
    """A function or class of torch that is only named."""
    text: str


@dataclass(frozen=True)
class _Storage:
    name: str
    storage_bytes: int


def _storage_of_file(storage_class, manager, name, storage_bytes, *dtype):
    del storage_class, manager, dtype
    if not (isinstance(name, bytes) and re.fullmatch(rb"/torch_[A-Za-z0-9_]{1,100}", name) and _is_count(storage_bytes)):
        raise BadMessage(f"the shared memory is {_shown(name)} with {_shown(storage_bytes)} bytes: expected a name that torch makes, /torch_...")
    return _Storage(name.decode(), storage_bytes)


def _typed_storage(storage, dtype):
    if not isinstance(storage, _Storage) or dtype != _Name("torch.uint8"):
        raise BadMessage(f"the buffer has elements of {_shown(dtype)}: expected torch.uint8")
    return storage


def _size(sizes):
    if not (isinstance(sizes, tuple) and all(map(_is_count, sizes))):
        raise BadMessage(f"a shape is {_shown(sizes)}: expected whole numbers")
    return sizes


def _given_up(reason="no reason"):
    return GivenUp(reason if isinstance(reason, str) else _shown(reason))


_REDUCTIONS = "torch.multiprocessing.reductions"
_STORAGES = ("torch.storage.UntypedStorage", "torch.storage.TypedStorage")
_NAMES = {
    f"{_REDUCTIONS}.rebuild_storage_filename": _storage_of_file,
    f"{_REDUCTIONS}.rebuild_typed_storage": _typed_storage,
    "torch.Size": _size,
    "builtins.RuntimeError": _given_up,
    **{name: _Name(name) for name in (f"{_REDUCTIONS}.rebuild_tensor", f"{_REDUCTIONS}.rebuild_cuda_tensor", "torch.Tensor", *_STORAGES,
                                      *(f"torch.{dtype}" for dtype in (*DTYPES, *TORCH_ELSE)))}}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        found = _NAMES.get(f"{module}.{name}")
        if found is None:
            raise BadMessage(f"the message names {module}.{name}: expected only what torch's reduce_tensor and checkpoint-engine name")
        return found


def _unpickle(data: bytes) -> Any:
    if len(data) > MESSAGE_BYTES_MAX:
        raise BadMessage(f"the message has {len(data)} bytes: expected at most {MESSAGE_BYTES_MAX}")
    try:
        for instruction, _, place in pickletools.genops(data):
            if instruction.name not in _INSTRUCTIONS:
                raise BadMessage(f"the message has the pickle instruction {instruction.name} at byte {place}, which no message needs")
        return _Reader(io.BytesIO(data)).load()
    except BadMessage:
        raise
    except Exception as error:  # of the unpickler, which raises whatever it stumbles on
        raise BadMessage(f"the message is no pickle of checkpoint-engine: {error}") from None


# ---- values as messages ----------------------------------------------------------------------------------------------------------------

def _buffer_of(value: tuple) -> Union[SharedMemory, DeviceMemory]:
    if len(value) == 2 and isinstance(value[1], tuple):
        function, arguments = value
        if function == _Name(f"{_REDUCTIONS}.rebuild_tensor"):
            return _shared_memory_of(arguments)
        if function == _Name(f"{_REDUCTIONS}.rebuild_cuda_tensor"):
            return _device_memory_of(arguments)
    raise BadMessage(f"the message is {_shown(value)}: expected the handle that torch's reduce_tensor makes")


def _shared_memory_of(arguments: tuple) -> SharedMemory:
    """rebuild_tensor(class, storage, (offset, size, stride, requires_grad))"""
    if not (len(arguments) == 3 and isinstance(arguments[1], _Storage) and isinstance(arguments[2], tuple) and len(arguments[2]) == 4):
        raise BadMessage(f"the buffer is {_shown(arguments)}: expected shared memory by the name of a file "
                         "(torch.multiprocessing.set_sharing_strategy('file_system'))")
    storage, (offset, size, stride, _) = arguments[1], arguments[2]
    _check_buffer(size, stride)
    if offset != 0 or size[0] > storage.storage_bytes:
        raise BadMessage(f"the buffer has bytes {_shown(offset)} to {size[0]} of memory of {storage.storage_bytes}: expected to begin at 0 and to fit")
    return SharedMemory(storage.name, size[0])


def _device_memory_of(arguments: tuple) -> DeviceMemory:
    """rebuild_cuda_tensor(class, size, stride, offset, class of storage, dtype, device, handle, bytes, offset of bytes, requires_grad,
    reference counter: handle, offset, event: handle, is to be waited for)"""
    kinds = (_Name, tuple, tuple, int, _Name, _Name, int, bytes, int, int, bool, bytes, int, bytes, bool)
    if len(arguments) != len(kinds):
        raise BadMessage(f"rebuild_cuda_tensor has {len(arguments)} arguments: expected {len(kinds)}, as torch 2 makes them")
    for place, (argument, kind) in enumerate(zip(arguments, kinds)):
        if not isinstance(argument, kind) or (kind is int and not _is_count(argument)):
            raise BadMessage(f"argument {place} of rebuild_cuda_tensor is {_shown(argument)}: expected {kind.__name__.strip('_')}")
    _check_buffer(arguments[1], arguments[2])
    for place, expected in ((0, ("torch.Tensor",)), (4, _STORAGES), (5, ("torch.uint8",))):
        if arguments[place].text not in expected:
            raise BadMessage(f"argument {place} of rebuild_cuda_tensor is {arguments[place].text}: expected {' or '.join(expected)}")
    plain = tuple(argument.text if isinstance(argument, _Name) else argument for argument in arguments)
    return DeviceMemory(plain, arguments[1][0])


def _check_buffer(size: Any, stride: Any) -> None:
    if not (isinstance(size, tuple) and len(size) == 1 and _is_count(size[0]) and stride == (1,)):
        raise BadMessage(f"the buffer has shape {_shown(size)} and stride {_shown(stride)}: expected one dimension")


def _tensor_of(item: Any) -> Tensor:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise BadMessage(f"a bucket has {_shown(item)}: expected name, dtype, shape and offset of a tensor")
    name, dtype, shape, begin = item["name"], item.get("dtype"), item.get("shape"), item.get("offset")
    spelt = dtype.text.rpartition(".")[2] if isinstance(dtype, _Name) else _shown(dtype)
    if spelt not in DTYPES:
        raise BadMessage(f"tensor {name}: dtype is {spelt}: expected one of {', '.join(DTYPES)}")
    if not isinstance(shape, (tuple, list)) or not all(map(_is_count, shape)):
        raise BadMessage(f"tensor {name}: shape is {_shown(shape)}: expected whole numbers")
    if not _is_count(begin):
        raise BadMessage(f"tensor {name}: offset is {_shown(begin)}: expected a whole number of at least 0")
    return Tensor(name, spelt, tuple(shape), begin, begin + math.prod(shape) * DTYPES[spelt])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _shown(value: Any) -> str:
    return reprlib.repr(value)  # short, whatever refers to itself or is nested how deep
