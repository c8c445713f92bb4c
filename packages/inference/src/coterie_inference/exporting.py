"""A model as a file that needs no Coterie: a state dict, TorchScript or ONNX, and beside it what the model takes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, did_you_mean, extra
from coterie.models.ensemble import Ensemble
from coterie.runs import save_tensors, write_atomically, writing
from coterie.runs.target_scaling import Rescaled
from coterie_inference.predicting import loss_of, module_for, outputs_of, shape_of
from coterie_inference.raw_inputs import (
    CELLS,
    PIXELS,
    Answers,
    LabelOfCells,
    Named,
    NumberOfCells,
    OfPixels,
    name_labels_onnx,
    of_cells_onnx,
    pixels_like,
    takes_pixels,
)
from coterie_inference.samples import ModelShape

if TYPE_CHECKING:
    from coterie.runs import Result

Format = Literal["state_dict", "torchscript", "onnx"]
BY_ENDING: dict[str, Format] = {
    ".onnx": "onnx", ".ts": "torchscript", ".torchscript": "torchscript",
    ".pt": "state_dict", ".pth": "state_dict", ".safetensors": "state_dict",
}  # fmt: skip
"""The format that a file's ending asks for."""
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
    kind = format or BY_ENDING.get(target.suffix.lower())
    if kind is None:
        endings = ", ".join(BY_ENDING)
        raise ConfigError(f"{target}: no format ends in {target.suffix!r}: expected {endings}, or give format=…")
    if kind not in get_args(Format):
        raise ConfigError(f"format={kind!r}: {did_you_mean(kind, get_args(Format))}")
    if kind == "onnx":
        with extra("export", 'format="onnx"'):
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401
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
            torch.jit.save(_script_of(result, module, shape), str(target))
        else:
            _save_onnx(result, module, shape, target)
    about = description(result, shape, client, cluster, kind, module)
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    write_atomically(target.with_name(target.name + ".json"), text.encode())
    write_atomically(target.with_name(target.name + ".md"), model_card(result, about).encode())
    return target


def _traced(result: Result, module: nn.Module, shape: ModelShape) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """The module as it is traced, and what makes inputs for it: of raw inputs it gives probabilities or predictions."""
    inputs = partial(example, shape)
    if _takes(shape) == "inputs":
        return module, inputs
    answers = Answers(module, shape.classes, loss_of(result, outputs_of(module, inputs(2)), shape))
    if shape.table is not None:
        return answers, inputs
    return OfPixels(answers), partial(pixels_like, shape)


def _takes(shape: ModelShape, kind: str = "onnx") -> str:
    """What an exported model takes: cells of a table, pixels, or inputs as the model was trained on."""
    if kind == "state_dict":
        return "inputs"
    return CELLS if shape.table is not None else PIXELS if takes_pixels(shape) else "inputs"


def _script_of(result: Result, module: nn.Module, shape: ModelShape) -> torch.jit.ScriptModule:
    """The model in TorchScript, of cells or pixels where the run's data were such."""
    inner = scripted(*_traced(result, module, shape))
    if _takes(shape) == "inputs":
        return inner
    names = [str(name) for name in shape.label_names] or [str(i) for i in range(shape.classes)]
    if shape.table is None:
        return _compiled(Named(inner, names)) if names else inner
    return _compiled(LabelOfCells(inner, shape.table, names) if names else NumberOfCells(inner, shape.table))


def _compiled(module: nn.Module) -> torch.jit.ScriptModule:
    """A module of ours in TorchScript, without torch's remarks on how it is written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled: torch.jit.ScriptModule = torch.jit.script(module)
        return compiled


def description(
    result: Result, shape: ModelShape, client: str | None, cluster: int | None, kind: str, module: nn.Module
) -> dict[str, Any]:
    """What the model takes and answers, and where it comes from."""
    takes = _takes(shape, kind)
    return {
        "format": kind,
        "method": result.summary.method,
        "model": result.summary.model,
        "client": client,
        "cluster": result.record_of(client).cluster if client is not None else cluster,
        "mixture": result.record_of(client).mixture if isinstance(module, Ensemble) and client is not None else None,
        "inputs": _inputs(shape, takes),
        "scaled_from_uint8": shape.scaled,
        "outputs": _outputs(shape, kind, module, takes),
        "classes": shape.classes,
        "label_names": [name if isinstance(name, int | float | bool) else str(name) for name in shape.label_names],
        "table": None if shape.table is None else shape.table.to_json(),
    }


def _inputs(shape: ModelShape, takes: str) -> dict[str, Any]:
    """What the model takes."""
    if takes == CELLS and shape.table is not None:
        return {"name": CELLS, "dtype": "text", "columns": [column.name for column in shape.table.columns]}
    if takes == PIXELS:
        return {"name": PIXELS, "shape": ["n", *pixels_like(shape, 1).shape[1:]], "dtype": "uint8"}
    return {"shape": ["n", *shape.input_shape], "dtype": str(shape.dtype).removeprefix("torch.")}


def _outputs(shape: ModelShape, kind: str, module: nn.Module, takes: str) -> str:
    """What the model answers."""
    if takes != "inputs":
        return "prediction (n,) and probabilities (n, classes)" if shape.classes else "prediction (n,)"
    if kind == "state_dict" and isinstance(module, Rescaled):
        return f"predictions, to be multiplied by {float(module.scale)!r}, plus {float(module.mean)!r}"
    if not shape.classes:
        return "predictions"
    one = outputs_of(module, example(shape, 1)).numel() == 1
    return "one logit per sample (n, 1), for the second class" if one else "logits (n, classes)"


def model_card(result: Result, about: Mapping[str, Any]) -> str:
    """A page on an exported model: where it comes from, what it takes and answers, how well it did, and for whom."""
    summary, client = result.summary, about["client"]
    cluster = "all clients" if about["cluster"] is None else f"cluster {about['cluster']}"
    whose = cluster if client is None else f"client {client}"
    row = result.record_of(client) if client is not None else None
    measured = {} if row is None else {"loss": row.loss, "accuracy": row.accuracy, **(row.metrics or {})}
    spreads = {name: spread for name, spread in summary.metrics.items() if spread.mean is not None}
    table = [f"| {name} | {one.mean:.4g} | {one.min:.4g} | {one.max:.4g} |" for name, one in spreads.items()]
    tested = f"of {client} on its {row.test_samples} test samples" if row is not None else ""
    own = [f"* {name} {tested}: {value:.4g}" for name, value in measured.items() if value is not None]
    labels = ", ".join(map(str, about["label_names"])) or (
        f"0 to {about['classes'] - 1}" if about["classes"] else "a number"
    )
    lines = [
        f"# Model of {whose}: {summary.model}, trained by {summary.method}",
        "",
        f"* Trained on {summary.scenario}: {summary.clients} clients, {summary.rounds} rounds, seed {summary.seed}.",
        f"* Takes: {json.dumps(about['inputs'], ensure_ascii=False)}",
        f"* Answers: {about['outputs']}; classes: {labels}",
        *own,
        "",
        "| all clients' test data | mean | lowest | highest |",
        "|---|---|---|---|",
        *table,
        "",
        "Measured on held-out samples of the clients that took part, not on other clients, later data or subgroups:",
        "measure it on your own data before you rely on it.",
    ]
    return "\n".join(lines) + "\n"


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


def scripted(module: nn.Module, example: Callable[[int], Tensor]) -> torch.jit.ScriptModule:
    """The module as TorchScript: traced or, where a trace does not hold for another number of samples, compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a trace cannot follow is found by comparing
        problem: Exception | None = None
        for make in (lambda: torch.jit.trace(module, example(2)), lambda: torch.jit.script(module)):
            try:
                made: torch.jit.ScriptModule = make()
                x = example(3)
                if _close(outputs_of(made, x), outputs_of(module, x)):
                    return made
            except Exception as found:
                problem = found
    why = f" ({type(problem).__name__}: {str(problem).partition(chr(10))[0]})" if problem else ""
    raise ConfigError(f"this model cannot be written as TorchScript{why}: use format='state_dict'") from problem


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=CLOSE, atol=CLOSE))


def _save_onnx(result: Result, module: nn.Module, shape: ModelShape, target: Path) -> None:
    """The model in ONNX, of cells or pixels where the run's data were such."""
    takes = _takes(shape)
    traced, inputs = _traced(result, module, shape)
    if takes == "inputs":
        _write_onnx(traced, inputs(2), ("inputs", "outputs"), target)
        return
    import onnx

    first = PIXELS if takes == PIXELS else "inputs"
    last = "probabilities" if shape.classes else "prediction"
    _write_onnx(traced, inputs(2), (first, last), target)
    model = onnx.load(str(target))
    if shape.table is not None:
        of_cells_onnx(model, shape.table)
    if shape.classes:
        name_labels_onnx(model, shape.label_names or range(shape.classes))
    onnx.checker.check_model(model)
    onnx.save(model, str(target))


OPSET = 20
"""Of ONNX: the first that compares texts with regular expressions, as the preprocessing of tables does."""


def _write_onnx(module: nn.Module, given: Tensor, ends: tuple[str, str], target: Path) -> None:
    names: dict[str, Any] = {"input_names": [ends[0]], "output_names": [ends[1]], "opset_version": OPSET}
    older: dict[str, Any] = {"dynamic_axes": {ends[0]: {0: "n"}, ends[1]: {0: "n"}}, "dynamo": False}
    newer: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("n")},), "external_data": False, "dynamo": True}
    problem: Exception | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of parts that are about to change
        for way in (older, newer):  # the older one takes a hundredth of the time, the newer one writes more networks
            try:
                torch.onnx.export(module, (given,), str(target), **names, **way, verbose=False)
                return
            except Exception as found:
                problem = found
    said = str(problem).strip().partition("\n")[0]
    raise ConfigError(
        f"torch cannot write this model as ONNX ({type(problem).__name__}: {said}): use format='torchscript' or "
        "'state_dict'"
    ) from problem
