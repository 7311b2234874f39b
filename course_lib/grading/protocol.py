"""What crosses between the grader and the process that runs a learner's code.

Inputs go in as pickles: they come from the grader, who is trusted. Results come out as JSON and are decoded against
the few forms that a record can have; nothing that a learner's process wrote is ever unpickled. Every message is a
length and so many bytes.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import json
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cloudpickle
import torch

from course_lib.checking.exercise import build_cases
from course_lib.checking.judge import Observation
from course_lib.checking.records import Record, TensorRecord
from course_lib.checking.trial import Case

LENGTH = 8  # bytes of the number in front of each message
LARGEST = 128 * 2**20  # bytes of one message; a record of the largest tensor that is kept fits
MOST_PARTS = 100_000  # of one message; decoding them takes a second
SHOWN = 8_000  # characters of what is only shown
BY_VALUE = ("course_lib.exercises", "course_lib.simulation")  # modules that a learner's process does not have
DEEPEST = 60  # levels of nesting in what comes out; records nest less than half as deep


class Malformed(Exception):
    """A learner's process sent something that is no observation."""


class OutOfTime(Exception):
    """Nothing complete came before the deadline."""


class Ended(Exception):
    """The other side is gone."""


# ---- messages ----------------------------------------------------------------------------------------------------


def send(channel: socket.socket, message: bytes, deadline: float | None = None) -> None:
    """Send one message. Raises Ended where nobody is left to take it, and OutOfTime where nobody takes it."""
    _wait_until(channel, deadline)
    try:
        channel.sendall(len(message).to_bytes(LENGTH, "big") + message)
    except TimeoutError as error:
        raise OutOfTime from error
    except OSError as error:
        raise Ended from error


def _wait_until(channel: socket.socket, deadline: float | None) -> None:
    channel.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))


def receive(channel: socket.socket, deadline: float | None = None) -> bytes:
    """One message. `deadline` is a value of `time.monotonic()`. Raises Ended, OutOfTime or Malformed."""
    length = int.from_bytes(_receive_exactly(channel, LENGTH, deadline), "big")
    if length > LARGEST:
        raise Malformed(f"a message of {length} bytes; the most is {LARGEST}")
    return _receive_exactly(channel, length, deadline)


def _receive_exactly(channel: socket.socket, length: int, deadline: float | None) -> bytes:
    received = bytearray()
    while len(received) < length:
        _wait_until(channel, deadline)
        try:
            part = channel.recv(min(length - len(received), 2**20))
        except TimeoutError as error:
            raise OutOfTime from error
        except OSError as error:
            raise Ended from error
        if not part:
            raise Ended
        received += part
    return bytes(received)


# ---- in: cases and what to do with them --------------------------------------------------------------------------


class _Storage:
    """The bytes of a storage, once for all tensors on it."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.data = bytes(storage.tolist()) if storage.nbytes() < 64 else _bytes_of(storage)

    def __reduce__(self):
        return _storage, (self.data,)


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    return torch.tensor([], dtype=torch.uint8).set_(storage).numpy().tobytes()


def _storage(data: bytes) -> torch.UntypedStorage:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage() if data else _empty()


def _empty() -> torch.UntypedStorage:
    return torch.UntypedStorage(0)


class _Pickler(cloudpickle.Pickler):
    """Functions and classes of the exercises by value; tensors with their strides, and one storage where they share."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, _Storage] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) in (torch.Tensor, torch.nn.Parameter) and _is_plain(value):
            return (_view, _parts_of_view(value)) if value._is_view() else (_tensor, self._parts(value))
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__.startswith(BY_VALUE):
            return functools.cache, (value.__wrapped__,)  # as it is, it would be looked up by its name
        if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        if isinstance(value, type) and _known_as(value) is value:  # cloudpickle goes by the qualified name
            return _class_named, (value.__module__, value.__name__)
        return super().reducer_override(value)

    def _parts(self, tensor: torch.Tensor) -> tuple:
        storage = tensor.untyped_storage()
        kept = self._storages.setdefault(storage._cdata, _Storage(storage))
        layout = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return type(tensor), kept, layout, tensor.requires_grad, tensor.grad


def _known_as(value: type) -> Any:
    """What a module of PyTorch has under the name of this class."""
    module = sys.modules.get(value.__module__)
    return getattr(module, value.__name__, None) if value.__module__.startswith("torch") else None


def _class_named(module: str, name: str) -> type:
    return getattr(importlib.import_module(module), name)


def _is_plain(tensor: torch.Tensor) -> bool:
    """A tensor on the CPU that is a leaf and keeps nothing beside its storage; all others pickle as PyTorch says."""
    simple = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_leaf
    return simple and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized


def _tensor(kind: type, storage: torch.UntypedStorage, layout: tuple, requires_grad: bool, grad: Any) -> Any:
    dtype, shape, stride, offset = layout
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
    if kind is torch.nn.Parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    else:
        tensor.requires_grad_(requires_grad)
    tensor.grad = grad
    return tensor


def _parts_of_view(view: torch.Tensor) -> tuple:
    layout = view.dtype, tuple(view.shape), view.stride(), view.storage_offset()
    return view._base, layout, view.requires_grad, view.grad


def _view(base: torch.Tensor, layout: tuple, requires_grad: bool, grad: Any) -> torch.Tensor:
    """Still a view to autograd: writing into it counts for its base, and it can't be detached in place."""
    dtype, shape, stride, offset = layout
    with torch.no_grad():
        view = base.view(dtype).as_strided(shape, stride, offset)
    view.requires_grad_(requires_grad).grad = grad
    return view


@dataclass(frozen=True)
class CaseToBuild:
    """A case whose inputs can't be copied: how to build all cases of its exercise, and which one it is."""

    builder: Callable
    seed: int
    index: int


def unpickled_case(message: bytes) -> Case:
    """A case as `pickled` wrote it. Only for messages of the grader."""
    case = pickle.loads(message)
    if isinstance(case, CaseToBuild):
        return build_cases(case.builder, case.seed)[case.index]
    return case


def pickled(value: Any) -> bytes:
    """`value` for the learner's process, with the code of the exercises that it needs, and no more of it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(BY_VALUE):
            cloudpickle.register_pickle_by_value(module)
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


# ---- out: observations -------------------------------------------------------------------------------------------


def encode_observation(observation: Observation, forbidden: list[str]) -> bytes:
    """One case's observation as JSON."""
    return json.dumps(
        {
            "facets": {name: _encode_any(record) for name, record in observation.facets.items()},
            "raised": observation.raised,
            "error": observation.error,
            "your turn": observation.your_turn,
            "forbidden": forbidden,
        }
    ).encode()


def decode_observation(message: bytes) -> tuple[Observation, list[str]]:
    """The observation of one case, and the forbidden calls seen in it. Raises Malformed."""
    if message.count(b",") > MOST_PARTS or message.count(b"[") > MOST_PARTS:
        raise Malformed(f"more than {MOST_PARTS} parts")
    try:
        found = json.loads(message)
        facets = {_text(name): _decode(item, 0) for name, item in found["facets"].items()}
        raised, forbidden = (list(map(_short_text, found[key])) for key in ("raised", "forbidden"))
        return Observation(
            facets, tuple(raised), _short_text(found["error"]), found["your turn"] is True
        ), forbidden
    except Malformed:
        raise
    except Exception as error:  # whatever is odd about it, it is no observation
        raise Malformed(f"{type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Malformed(f"{type(value).__name__} where a text belongs")
    return value


def _short_text(value: Any) -> str:
    """A text that is shown and never compared with a result."""
    return _text(value)[:SHOWN]


def _encode_any(record: Any) -> list:
    """Whatever is odd about a result, the others are still told."""
    try:
        return _encode(record)
    except Exception as error:
        return _encode(Record(f"could not be observed ({type(error).__name__})"))


def _encode(record: Any) -> list:
    """A record as a list that begins with its kind."""
    if isinstance(record, TensorRecord):
        data = None if record.data is None else _base64(_raw_bytes(record.data))
        dtype = None if record.data is None else str(record.data.dtype).removeprefix("torch.")
        facts = [record.kind, list(record.shape), record.dtype, record.device]
        return ["tensor", *facts, dtype, data, _encode(record.state)]
    if isinstance(record, Record):
        return ["record", record.kind, [[_encode(key), _encode(item)] for key, item in record.items]]
    return [type(record).__name__, _ENCODERS[type(record)](record)]


def _decode(item: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise Malformed("nested too deep")
    kind, *rest = item
    if kind == "record":
        name, pairs = rest
        return Record(_text(name), tuple((_decode(k, depth + 1), _decode(v, depth + 1)) for k, v in pairs))
    if kind == "tensor":
        return _decode_tensor(*rest, depth=depth)
    (value,) = rest
    return _DECODERS[kind](value)


def _decode_tensor(
    kind: str,
    shape: list,
    dtype: str,
    device: str,
    stored: str | None,
    data: str | None,
    state: Any,
    depth: int,
) -> TensorRecord:
    sizes = tuple(map(int, shape))
    values = None if data is None else _from_raw_bytes(base64.b64decode(data), _text(stored), sizes)
    if values is not None and (stored != dtype or tuple(values.shape) != sizes):
        raise Malformed("a tensor that is not what it says")
    return TensorRecord(_text(kind), sizes, _text(dtype), _text(device), values, _decode(state, depth + 1))


def _raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _from_raw_bytes(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    known = getattr(torch, dtype)
    if not isinstance(known, torch.dtype):
        raise Malformed(f"{dtype} is no dtype")
    torch.zeros(1, dtype=known).tolist()  # raises where its numbers can't be told
    values = torch.frombuffer(bytearray(data), dtype=known) if data else torch.empty(0, dtype=known)
    return values.reshape(shape)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _complex(pair: list[str]) -> complex:
    return complex(float.fromhex(pair[0]), float.fromhex(pair[1]))


_ENCODERS: dict[type, Callable] = {
    type(None): lambda value: None,
    bool: bool,
    int: hex,  # of any size
    float: float.hex,  # exactly, NaN and infinities too
    complex: lambda value: [value.real.hex(), value.imag.hex()],
    str: str,
    bytes: _base64,
}
_DECODERS: dict[str, Callable] = {
    "NoneType": lambda value: None,
    "bool": lambda value: value is True,
    "int": lambda value: int(value, 16),
    "float": float.fromhex,
    "complex": _complex,
    "str": _text,
    "bytes": base64.b64decode,
}
