"""A model as a file that needs no Coterie: a state dict, TorchScript or ONNX, and beside it what the model takes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, did_you_mean
from coterie.models.ensemble import Ensemble
from coterie.runs.samples import ModelShape
from coterie.runs.target_scaling import Rescaled
from coterie.runs.using import module_for, outputs_of, shape_of
from coterie.snapshot import save_tensors, write_atomically, writing

if TYPE_CHECKING:
    from coterie.runs.result import Result

Format = Literal["state_dict", "torchscript", "onnx"]
BY_ENDING: dict[str, Format] = {".onnx": "onnx", ".ts": "torchscript", ".torchscript": "torchscript"}
"""The format that a file's ending asks for; any other is a state dict."""
CLOSE = 1e-4
"""The most by which an exported model's outputs may differ from the model's, relative to the larger of 1 and them."""


def export(
    result: Result,
    path: str | Path,
    client: str | None = None,
    cluster: int | None = None,
    *,
    format: str | None = None,
) -> Path:
    """Write a model and its description; see `Result.export`."""
    target = Path(path)
    kind = format or BY_ENDING.get(target.suffix.lower(), "state_dict")
    if kind not in get_args(Format):
        raise ConfigError(f"format={kind!r}: {did_you_mean(kind, get_args(Format))}")
    if kind == "onnx":
        check_onnx()
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder: give the file to write, such as {target / 'model.pt'}")
    shape, module = shape_of(result), module_for(result, client, cluster)
    if kind == "state_dict" and isinstance(module, Ensemble):
        raise ConfigError(
            f"client {client!r} is served by a mixture of {len(module.members)} models, a state dict holds one: use "
            "format='torchscript' or 'onnx', or write the models one by one with cluster=…"
        )
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind == "state_dict":
            _save_state(module, target)
        elif kind == "torchscript":
            torch.jit.save(scripted(module, shape), str(target))
        else:
            _save_onnx(module, shape, target)
    about = description(result, shape, client, cluster, kind, module)
    write_atomically(described_in(target), (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
    return target


def described_in(path: Path) -> Path:
    """The file beside an exported model that says what it takes and answers."""
    return path.with_name(path.name + ".json")


def description(
    result: Result, shape: ModelShape, client: str | None, cluster: int | None, kind: str, module: nn.Module
) -> dict[str, Any]:
    """What the model takes and answers, and where it comes from."""
    one = bool(shape.classes) and outputs_of(module, example(shape, 1)).numel() == 1
    answer = "logits (n, classes)" if shape.classes else "predictions"
    if kind == "state_dict" and isinstance(module, Rescaled):
        answer = f"predictions, to be multiplied by {float(module.scale)!r}, plus {float(module.mean)!r}"
    return {
        "format": kind,
        "method": result.summary.method,
        "model": result.summary.model,
        "client": client,
        "cluster": result.record_of(client).cluster if client is not None else cluster,
        "mixture": result.record_of(client).mixture if isinstance(module, Ensemble) and client is not None else None,
        "inputs": {"shape": ["n", *shape.input_shape], "dtype": str(shape.dtype).removeprefix("torch.")},
        "scaled_from_uint8": shape.scaled,
        "outputs": "one logit per sample (n, 1), for the second class" if one else answer,
        "classes": shape.classes,
        "label_names": [name if isinstance(name, int | float | bool) else str(name) for name in shape.label_names],
        "table": None if shape.table is None else shape.table.to_json(),
    }


def example(shape: ModelShape, n: int) -> Tensor:
    """Inputs `(n, …)` of the right kind: random numbers, or tokens of zero."""
    if shape.dtype.is_floating_point:
        return torch.rand(n, *shape.input_shape, generator=torch.Generator().manual_seed(n), dtype=shape.dtype)
    return torch.zeros(n, *shape.input_shape, dtype=shape.dtype)


def _save_state(module: nn.Module, target: Path) -> None:
    module = module.trained if isinstance(module, Rescaled) else module
    state = {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}
    if target.suffix.lower() == ".safetensors":
        save_tensors(state, target)
    else:
        torch.save(state, target)


def scripted(module: nn.Module, shape: ModelShape) -> torch.jit.ScriptModule:
    """The module as TorchScript: traced or, where a trace does not hold for another number of samples, compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a trace cannot follow is found by comparing
        problem: Exception | None = None
        for make in (lambda: torch.jit.trace(module, example(shape, 2)), lambda: torch.jit.script(module)):
            try:
                made: torch.jit.ScriptModule = make()
                x = example(shape, 3)
                if _close(outputs_of(made, x), outputs_of(module, x)):
                    return made
            except Exception as found:
                problem = found
    why = f" ({type(problem).__name__}: {str(problem).partition(chr(10))[0]})" if problem else ""
    raise ConfigError(f"this model cannot be written as TorchScript{why}: use format='state_dict'") from problem


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=CLOSE, atol=CLOSE))


def check_onnx() -> None:
    """ConfigError without the packages that write ONNX."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError('format="onnx" needs onnx and onnxscript: pip install "coterie[export]"') from None


def _save_onnx(module: nn.Module, shape: ModelShape, target: Path) -> None:
    names: dict[str, Any] = {"input_names": ["inputs"], "output_names": ["outputs"]}
    older: dict[str, Any] = {"dynamic_axes": {"inputs": {0: "n"}, "outputs": {0: "n"}}, "dynamo": False}
    newer: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("n")},), "external_data": False, "dynamo": True}
    problem: Exception | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of parts that are about to change
        for way in (older, newer):  # the older one takes a hundredth of the time, the newer one writes more networks
            try:
                torch.onnx.export(module, (example(shape, 2),), str(target), **names, **way, verbose=False)
                return
            except Exception as found:
                problem = found
    said = str(problem).strip().partition("\n")[0]
    raise ConfigError(
        f"torch cannot write this model as ONNX ({type(problem).__name__}: {said}): use format='torchscript' or "
        "'state_dict'"
    ) from problem
