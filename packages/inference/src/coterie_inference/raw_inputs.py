"""Exported models that take what people have: cells of a CSV file or pixels of an image; they answer labels by name.

Preprocessing and names are inside the file: onnxruntime alone, or torch alone, answers what `Result.predict` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.federation.table_columns import Column
from coterie.federation.table_files import BOOLEANS, MISSING
from coterie.federation.tables import Table
from coterie.trainers.losses import Loss, class_logits
from coterie_inference.samples import ModelShape

CELLS = "cells"
"""The input of a model on tables: texts (n, columns), as in the lines of a CSV file."""
PIXELS = "pixels"
"""The input of a model on images: uint8 (n, height, width), or (n, height, width, 3) of colour."""
NUMBER = r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
"""The texts that are read as numbers, as a regular expression of RE2."""
ML = "ai.onnx.ml"


class Answers(nn.Module):
    """A module that answers probabilities `(n, classes)`, or predictions `(n,)` of a regression."""

    def __init__(self, module: nn.Module, classes: int, loss: Loss) -> None:
        super().__init__()
        self.module, self.classes, self.loss = module, classes, loss

    def forward(self, x: Tensor) -> Tensor:
        """Of inputs as the model takes them."""
        outputs: Tensor = self.module(x)
        if self.classes:
            return torch.softmax(class_logits(outputs, self.loss), -1)
        return outputs.reshape(outputs.shape[0]) if outputs[0].numel() == 1 else outputs


class OfPixels(nn.Module):
    """A module of pixels as Pillow gives them, scaled to [0, 1] and with the channels first."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, pixels: Tensor) -> Tensor:
        """Of uint8 `(n, height, width)` or `(n, height, width, 3)`."""
        scaled = pixels.to(torch.float32) / 255
        x = scaled.unsqueeze(1) if pixels.dim() == 3 else scaled.permute(0, 3, 1, 2)
        answer: Tensor = self.module(x)
        return answer


def takes_pixels(shape: ModelShape) -> bool:
    """Whether a model's inputs are images of 8 bits."""
    return bool(shape.scaled) and len(shape.input_shape) == 3 and shape.input_shape[0] in (1, 3)


def pixels_like(shape: ModelShape, n: int) -> Tensor:
    """Random pixels for n samples."""
    channels, height, width = shape.input_shape
    size = (n, height, width) if channels == 1 else (n, height, width, channels)
    return torch.randint(0, 256, size, generator=torch.Generator().manual_seed(n), dtype=torch.uint8)


class Named(nn.Module):
    """A traced module in TorchScript with the labels' names: predictions, and what they were chosen by."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self.names: list[str] = list(names)

    def forward(self, x: Tensor) -> tuple[list[str], Tensor]:
        """Labels `(n,)` and probabilities `(n, classes)`."""
        chances = self.module(x)
        indices: list[int] = chances.argmax(-1).tolist()
        return [self.names[i] for i in indices], chances


class Inputs(nn.Module):
    """The preprocessing of `Table` in TorchScript."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.missing: list[str] = sorted(MISSING)
        self.booleans: dict[str, str] = dict(BOOLEANS)
        self.numbers: list[bool] = [column.kind == "number" for column in table.columns]
        self.fills: list[float] = [column.fill for column in table.columns]
        self.means: list[float] = [column.mean for column in table.columns]
        self.scales: list[float] = [column.scale for column in table.columns]
        # TorchScript takes the type of a dictionary from its entries, so that of a column of numbers has one.
        self.places: list[dict[str, int]] = [_places(column) or {"": -1} for column in table.columns]
        self.others: list[bool] = [column.other for column in table.columns]
        self.gaps: list[bool] = [column.missing for column in table.columns]

    def forward(self, cells: list[list[str]]) -> Tensor:
        """Inputs `(n, features)` of rows of texts in the order of the columns."""
        rows: list[list[float]] = []
        for texts in cells:
            row: list[float] = []
            for j in range(len(self.numbers)):
                text = texts[j].strip()
                gone = text in self.missing
                if self.numbers[j]:
                    value = self.fills[j] if gone else float(text)
                    row.append((value - self.means[j]) / self.scales[j])
                else:
                    if text in self.booleans:
                        text = self.booleans[text]
                    place = -1
                    if text in self.places[j] and not gone:
                        place = self.places[j][text]
                    for i in range(len(self.places[j])):
                        row.append(1.0 if i == place else 0.0)
                    if self.others[j]:
                        row.append(1.0 if place == -1 and not gone else 0.0)
                if self.gaps[j]:
                    row.append(1.0 if gone else 0.0)
            rows.append(row)
        return torch.tensor(rows, dtype=torch.float64).to(torch.float32)


class LabelOfCells(nn.Module):
    """A classifier of a table's cells in TorchScript."""

    def __init__(self, module: nn.Module, table: Table, names: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.named = Inputs(table), Named(module, names)

    def forward(self, cells: list[list[str]]) -> tuple[list[str], Tensor]:
        """Labels `(n,)` and probabilities `(n, classes)`."""
        x = self.inputs(cells)
        labels, chances = self.named(x)
        return labels, chances


class NumberOfCells(nn.Module):
    """A regression of a table's cells in TorchScript."""

    def __init__(self, module: nn.Module, table: Table) -> None:
        super().__init__()
        self.inputs, self.module = Inputs(table), module

    def forward(self, cells: list[list[str]]) -> Tensor:
        """Predictions `(n,)`."""
        answer: Tensor = self.module(self.inputs(cells))
        return answer


def _places(column: Column) -> dict[str, int]:
    return {value: i for i, value in enumerate(column.categories)}


def of_cells_onnx(model: Any, table: Table) -> None:
    """Put a table's preprocessing before an ONNX model whose input is `inputs`, so that it takes cells."""
    from onnx import TensorProto, helper

    graph = model.graph
    nodes = _Nodes()
    features = [
        feature
        for j, column in enumerate(table.columns)
        for feature in _column_nodes(nodes, column, nodes.add("Gather", [CELLS, nodes.constant(np.int64(j))], axis=1))
    ]
    nodes.add("Concat", features, "inputs", axis=1)
    own = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes.made, *own])
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(CELLS, TensorProto.STRING, ["n", len(table.columns)]))
    _import_ml(model)
    helper.set_model_props(model, {"columns": "\t".join(column.name for column in table.columns)})


def name_labels_onnx(model: Any, names: Sequence[Any]) -> None:
    """Let an ONNX model with probabilities answer the labels' names first."""
    from onnx import TensorProto, helper

    graph = model.graph
    index = helper.make_node("ArgMax", [graph.output[0].name], ["index"], axis=-1, keepdims=0)
    texts: dict[str, Any] = {"keys_int64s": list(range(len(names))), "values_strings": [str(name) for name in names]}
    label = helper.make_node("LabelEncoder", ["index"], ["prediction"], domain=ML, **texts)
    graph.node.extend([index, label])
    graph.output.insert(0, helper.make_tensor_value_info("prediction", TensorProto.STRING, ["n"]))
    _import_ml(model)


def _import_ml(model: Any) -> None:
    from onnx import helper

    if all(known.domain != ML for known in model.opset_import):
        model.opset_import.append(helper.make_opsetid(ML, 3))


class _Nodes:
    """Nodes of an ONNX graph in the making."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def add(
        self, kind: str, inputs: Sequence[str], output: str | None = None, domain: str = "", **settings: Any
    ) -> str:
        from onnx import helper

        output = output or f"raw_{len(self.made)}"
        self.made.append(helper.make_node(kind, inputs, [output], domain=domain, **settings))
        return output

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        return self.add("Constant", [], value=numpy_helper.from_array(np.asarray(value)))

    def encode(self, texts: str, numbers: dict[str, int], otherwise: int) -> str:
        """Whole numbers in place of texts, with a space before or behind them or without: ONNX cannot cut spaces."""
        spaced = {f"{a}{text}{b}": number for text, number in numbers.items() for a in ("", " ") for b in ("", " ")}
        values = list(spaced.values())
        keys: dict[str, Any] = {"keys_strings": list(spaced), "values_int64s": values, "default_int64": otherwise}
        return self.add("LabelEncoder", [texts], domain=ML, **keys)

    def rows(self, values: str) -> str:
        """Values `(n,)` as `(n, 1)`."""
        return self.add("Unsqueeze", [values, self.constant(np.array([1]))])

    def feature(self, values: str) -> str:
        """Values `(n,)` as an input `(n, 1) float32`."""
        return self.rows(self.add("Cast", [values], to=1))


def _column_nodes(nodes: _Nodes, column: Column, cells: str) -> list[str]:
    """The inputs `(n, …)` that a column's cells `(n,)` become."""
    gone = nodes.add("Cast", [nodes.encode(cells, dict.fromkeys(sorted(MISSING), 1), 0)], to=9)
    if column.kind == "number":
        zero, refused = (nodes.constant(np.array([text], dtype=object)) for text in ("0", "no number"))
        # A cast alone would read "60,5" as 60; so it meets a text that ends the call.
        whole = nodes.add("RegexFullMatch", [cells], pattern=NUMBER)
        texts = nodes.add("Where", [gone, zero, nodes.add("Where", [whole, cells, refused])])
        numbers = nodes.add("Cast", [texts], to=11)
        fill, mean, scale = (nodes.constant(np.float64(v)) for v in (column.fill, column.mean, column.scale))
        filled = nodes.add("Where", [gone, fill, numbers])
        made = [nodes.feature(nodes.add("Div", [nodes.add("Sub", [filled, mean]), scale]))]
    else:
        places = _places(column)
        spelled = {text: places[usual] for text, usual in BOOLEANS.items() if usual in places}
        place = nodes.encode(cells, {**places, **spelled}, -1)
        each = nodes.constant(np.arange(len(places)))
        made = [nodes.add("Cast", [nodes.add("Equal", [nodes.rows(place), each])], to=1)]
        if column.other:
            unknown = nodes.add("Equal", [place, nodes.constant(np.int64(-1))])
            made.append(nodes.feature(nodes.add("And", [unknown, nodes.add("Not", [gone])])))
    return made + [nodes.feature(gone)] * column.missing
