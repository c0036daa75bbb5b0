"""A pretended CUDA device: its tensors compute on the CPU, and refuse what tensors on CUDA refuse.

So a test finds tensors of two devices in one operation, a generator of another device, and an array
made of a tensor that was not copied to the CPU. It finds no wrong result: kernels are the CPU's.
"""

# torch's type stubs know no class of tensors that replaces its attributes.
# mypy: disable-error-code="assignment, attr-defined, call-arg, no-any-return, override"

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
# Operations that copy from one device to another.
COPIES = {aten.copy_, aten._to_copy, aten._foreach_copy_}
# Operations on a tensor that accept indices, or a single value, on the CPU.
INDEXED = {aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_, aten.index_fill}
FILLED = {aten.masked_fill, aten.masked_fill_, aten.index_fill, aten.fill_, aten.fill}


class OnCuda(Tensor):
    """A tensor on the pretended device; `held` has its numbers, on the CPU."""

    held: Tensor
    device, is_cuda, is_cpu = CUDA, True, False

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnCuda":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("cpu"),
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:
        return f"OnCuda({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        with torch.no_grad():
            copied = OnCuda(self.held.clone()).requires_grad_(self.requires_grad)
        vars(copied).update({k: v for k, v in vars(self).items() if k != "held"})
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        if func is Tensor.tolist:
            return args[0].held.tolist()
        # They make tensors beside their own one.
        if func in (Tensor.new_tensor, Tensor.quantile, one_hot):
            return OnCuda(func(args[0].held, *args[1:], **(kwargs or {})))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _check_devices(func, args, kwargs)
        given = {id(each.held): each for each in tree_leaves((args, kwargs)) if _is_ours(each)}
        out = func(*_held(args), **_held(kwargs))
        # An operation in place returns its tensor.
        return tree_map_only(
            Tensor, lambda each: given[id(each)] if id(each) in given else OnCuda(each), out
        )


def _is_ours(each: object) -> bool:
    return isinstance(each, OnCuda)


def _held(tree: Any) -> Any:
    return tree_map_only(OnCuda, lambda each: each.held, tree)


def _check_devices(func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse an operation that CUDA would refuse."""
    packet, leaves = func.overloadpacket, tree_leaves((args, kwargs))
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != "cuda":
        raise RuntimeError(f"{func}: the generator is on the CPU, the tensor on CUDA.")
    here = [each for each in leaves if isinstance(each, Tensor) and not _is_ours(each)]
    if packet in COPIES or not here:
        return
    if packet in INDEXED and _is_ours(args[0]):
        values = args[2] if len(args) > 2 else None
        here = [values] if isinstance(values, Tensor) and not _is_ours(values) else []
    single = torch.Tag.pointwise in func.tags or packet in INDEXED | FILLED
    if not all(single and each.ndim == 0 for each in here):
        shapes = [tuple(each.shape) for each in here]
        raise RuntimeError(f"{func}: tensors {shapes} are on the CPU, and others on CUDA.")


class _Move(torch.autograd.Function):
    """Copies a tensor to the other device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.held.clone() if isinstance(x, OnCuda) else OnCuda(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Move.apply(grad)


class _Pretending(TorchFunctionMode):
    """Reads the devices that a program names."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return _to(func, *args, **kwargs)
        if func is Tensor.backward:
            keep, inputs = bool(kwargs.get("retain_graph")), tuple(kwargs.get("inputs") or ())
            engine = torch.autograd.Variable._execution_engine
            with self:  # hooks make tensors, too
                ones = (torch.ones_like(args[0]),)
                engine.run_backward(args, ones, keep, False, inputs, True, True)
            return None
        named = kwargs.get("device")
        if named is None or torch.device(named).type != "cuda":
            return func(*args, **kwargs)
        if getattr(kwargs.get("generator"), "device", CUDA).type != "cuda":
            raise RuntimeError(f"{func}: the generator is on the CPU, the tensor on CUDA.")
        kwargs["device"] = "cpu"
        kwargs.pop("generator", None)
        return tree_map_only(
            Tensor, lambda each: each if _is_ours(each) else OnCuda(each), func(*args, **kwargs)
        )


def _to(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if func is Tensor.to:
        other = args[0] if args and isinstance(args[0], Tensor) else kwargs.pop("other", None)
        if other is not None:
            device, dtype, form = other.device, other.dtype, None
        else:
            copies = kwargs.pop("copy", False)
            device, dtype, _, form = torch._C._nn._parse_to(*args, **kwargs)
            x = x.clone() if copies else x
        how = {"memory_format": form} if form else {}
        x = _plain_to(x, dtype or x.dtype, **how)
    else:
        device = torch.device("cpu") if func is Tensor.cpu else CUDA
    if device is None or device.type == x.device.type:
        return x
    if device.type == "meta":
        return torch.empty_like(x.held if isinstance(x, OnCuda) else x, device="meta")
    return _Move.apply(x)


def _plain_to(x: Tensor, dtype: torch.dtype, **how: Any) -> Tensor:
    with torch._C.DisableTorchFunction():
        return Tensor.to(x, dtype, **how)


class _Generator(torch.Generator):
    """A generator of either device."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        made = super().__new__(cls, device="cpu")
        made.named = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self.named


@contextmanager
def pretended_cuda() -> Iterator[None]:
    """In this context torch has one CUDA device, which is pretended."""
    autocast, load = torch.autocast, torch.load

    def load_there(file: Any, map_location: Any = None, **how: Any) -> Any:
        loaded = load(file, map_location="cpu", **how)
        there = map_location is not None and torch.device(map_location).type == "cuda"
        return tree_map_only(Tensor, OnCuda, loaded) if there else loaded

    replaced = {
        "accelerator.is_available": lambda: False,  # optimizers would ask the device for a stream
        "cuda.is_available": lambda: True,
        "cuda.device_count": lambda: 1,
        "cuda.is_bf16_supported": lambda including_emulation=True: True,
        "cuda.get_rng_state": lambda device=0: torch.get_rng_state(),
        "cuda.set_rng_state": lambda state, device=0: None,
        "cuda.get_rng_state_all": lambda: [torch.get_rng_state()],
        "cuda.set_rng_state_all": lambda states: None,
        "cuda.manual_seed_all": lambda seed: None,
        # Tensors of Python classes refuse the inference mode.
        "_C._InferenceMode": lambda mode: torch.set_grad_enabled(not mode),
        "autocast": lambda device, *how, **more: autocast("cpu", *how, **more),
        "compile": lambda function: function,
        "load": load_there,
        "Generator": _Generator,
    }
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch, _Pretending():
        for name, value in replaced.items():
            patch.setattr(f"torch.{name}", value)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            yield
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
