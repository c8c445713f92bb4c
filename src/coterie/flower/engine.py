"""The engine on a Flower grid: every request is one message to one node, and whatever comes back is checked.

A node that is new is asked who it is, without waiting for it; it is one of the clients from the first `refresh` that
finds its answer. A node that does not answer in time stays a client, but is not asked again until it has answered that
question once more; one that the grid no longer lists is a client no longer. `refresh` is called between rounds only,
so that the clients never change within one.
"""

from __future__ import annotations

import math
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor, nn

from coterie.engines.base import Capabilities, Engine, Fault, Traffic
from coterie.engines.local import Privacy
from coterie.engines.secure_exchange import Members, SecureExchange, refuse_vectors
from coterie.errors import ConfigError, RunError
from coterie.flower.directory import Directory, Expected
from coterie.flower.exchange import Answer, Exchange
from coterie.flower.folding import fold, unfold
from coterie.flower.wire import Packer, layout_mark, open_reply
from coterie.parameters import Layout
from coterie.privacy import masked_layout
from coterie.tasks.base import Reduction, Reply, ReplyBlock, ReplySchema, Request, reduced, with_norm
from coterie.tasks.wire import BadReply, reply_bytes, task_bytes

TIMEOUT = 600.0
"""Seconds that a client has for a task, its own waiting included."""
STRIKES = 3
"""Rounds in a row with a fault after which a client is taken for gone: no cluster should wait for it any longer."""


class FlowerEngine(Engine):
    """Runs requests on the clients behind a Flower grid.

    `architecture` makes a freshly initialised module from a seed: the server's own copy of the clients' model, made for
    `classes` classes. The run continues while at least `min_replies` of the clients (a fraction, or a number if 1 or
    more) are sound, that is, gave a sound reply when they were last asked. `directory` is who is known already. Records
    with arrays of at most `fold_bytes` travel in one part (`folding`), in both directions.
    """

    capabilities = Capabilities(remote=True)

    def __init__(
        self,
        grid: Grid,
        architecture: Callable[[int], nn.Module],
        *,
        directory: Directory | None = None,
        classes: int | None = None,
        timeout: float = TIMEOUT,
        min_replies: float = 0.5,
        min_nodes: int = 1,
        privacy: Privacy = "none",
        run: str | None = None,
        poll: float = 0.5,
        fold_bytes: int = 0,
    ) -> None:
        if timeout <= 0 or min_replies < 0:
            raise ConfigError(f"timeout={timeout}, min_replies={min_replies}: expected a time above 0, and 0 or more")
        self.exchange = Exchange(grid, timeout, poll) if directory is None else directory.exchange
        self.directory = directory or Directory(self.exchange, Expected(classes))
        self.architecture = architecture
        self.min_replies = min_replies
        self.fold_bytes = fold_bytes
        self.run_name = run or uuid.uuid4().hex
        self.private = privacy in ("permutation", "signed-permutation")
        layout = Layout.of(architecture(0))
        self.layout = masked_layout(layout) if self.private else layout
        self.plain_layout = self.layout  # the server cannot undo the permutation
        self.directory.wait_for(min_nodes, timeout)
        self.classes = self.directory.classes
        self.traffic = Traffic()
        self._faults: list[Fault] = []
        self._unsound: set[str] = set()
        self._failed: set[str] = set()
        self._strikes: dict[str, int] = {}
        self._settle()

    def refresh(self) -> None:
        """Look who is there: between rounds, never within one."""
        self._strikes = {client: self._strikes.get(client, 0) + 1 for client in self._failed}
        self._failed = set()
        for client in [client for client, count in self._strikes.items() if count >= STRIKES]:
            self.directory.expel(
                client, f"it had faults in {STRIKES} rounds in a row and is out until its node returns"
            )
            del self._strikes[client]
        self.directory.refresh()
        if not self.directory.clients:
            self.directory.wait_for(1, self.exchange.timeout)
        self._settle()

    def _settle(self) -> None:
        self.clients = self.directory.clients
        self.samples = {client: self.directory[client].samples["train"] for client in self.clients}
        self._unsound &= set(self.clients)

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Send all the requests, and give the sound replies one by one in the order of the requests."""
        packer = Packer(self._header(), self.layout)
        nodes = [self.directory.node_of(request.client) for request in requests]
        sendable = [(request, node) for request, node in zip(requests, nodes, strict=True) if node is not None]
        messages = [self._message(node, packer.pack(request.task)) for request, node in sendable]
        self.traffic.down += sum(task_bytes(request.task, self.layout) for request, _ in sendable)
        self.traffic.exchanges += bool(sendable)
        answers = self.exchange.send(messages)
        for position, (request, node) in enumerate(zip(requests, nodes, strict=True)):
            if node is None:
                self._leave_out(request.client, "it has not answered since it was last asked")
                continue
            reply = self._read(request, next(answers))
            if reply is not None:
                yield reduced([reply], None if reduce is None else reduce.at([position]))
        self._check_enough()

    def _header(self) -> dict[str, Any]:
        return {
            "classes": self.classes,
            "layout": layout_mark(self.layout),
            "run": self.run_name,
            "fold": self.fold_bytes,
        }

    def _message(self, node: int, content: RecordDict, action: str = "coterie") -> Message:
        return self.exchange.message(fold(content, self.fold_bytes), node, f"query.{action}")

    def _read(self, request: Request, answer: Answer) -> Reply | None:
        """The reply in an answer, if it is sound."""
        schema = request.task.schema(self.layout)
        try:
            reply = open_reply(unfold(answer.records()), schema)
        except BadReply as problem:
            if answer.silent:
                self.directory.silence(request.client)
            self._leave_out(request.client, str(problem))
            return None
        self._unsound.discard(request.client)
        self.traffic.up += reply_bytes(reply, schema)
        return self._completed(request, reply, schema)

    def _completed(self, request: Request, reply: Reply, schema: ReplySchema) -> Reply:
        """The reply with what the server knows: whose it is, the samples behind it, and its vector's norm."""
        samples = self.directory[request.client].samples[schema.part]
        values = dict(reply.values)
        if reply.vector is None and samples and isinstance(values.get("loss"), list):
            # A model that has become NaN is worse than any other, and not unknown as for a client without such data.
            values["loss"] = [math.inf if math.isnan(loss) else loss for loss in values["loss"]]
        # The norm is computed here: nothing that decides a split is taken on trust.
        return with_norm(replace(reply, client=request.client, samples=samples, values=values), self.layout)

    def _leave_out(self, client: str, reason: str) -> None:
        self._unsound.add(client)
        self._failed.add(client)
        self._faults.append(Fault(client, reason))

    def _check_enough(self) -> None:
        """End the run when too few clients are left that work."""
        total = len(self.clients)
        sound = total - len(self._unsound & set(self.clients))
        needed = self.min_replies if self.min_replies >= 1 else math.ceil(self.min_replies * total)
        if sound < min(needed, total):
            last = self._faults[-1] if self._faults else Fault("?", "unknown")
            raise RunError(
                f"only {sound} of {total} clients gave a sound reply when last asked, {math.ceil(needed)} are needed; "
                f"the last that did not was {last.client}: {last.reason}"
            )

    def initial_model(self, seed: int) -> Tensor:
        """Freshly initialised parameters `(d,)`; with privacy, drawn and permuted by one of the clients."""
        return self._drawn_by_a_client(seed) if self.private else self.layout.read(self.architecture(seed))

    def _drawn_by_a_client(self, seed: int) -> Tensor:
        reason = "there are none"
        for client in self.clients:
            node = self.directory.node_of(client)
            if node is None:
                continue
            task = RecordDict({"task": ConfigRecord(self._header() | {"seed": str(seed)})})
            answer = next(self.exchange.send([self._message(node, task, "initial")]))
            try:
                vector = open_reply(unfold(answer.records()), ReplySchema(self.layout.size)).vector
            except BadReply as problem:
                reason = str(problem)
                self._leave_out(client, reason)
            else:
                assert vector is not None
                return vector
        raise RunError(f"no client could draw the initial model: {reason}")

    def faults(self) -> list[Fault]:
        """The clients and nodes left out since the last call."""
        faults, self._faults = [*self.directory.faults(), *self._faults], []
        return faults


class SecureFlowerEngine(FlowerEngine):
    """The clients behind a grid, whose updates are seen in sums only; `limit` and `minimum` are as in `SecureEngine`.

    A sum takes six exchanges instead of one. `owners` are the public keys of the clients that may take part, by which
    they sign (None: any, and the first key of a client is its own). A task whose reply would hold a single update is
    refused before it is sent.
    """

    def __init__(
        self,
        *args: Any,
        limit: float = 1.0,
        minimum: int = 3,
        owners: Mapping[str, bytes] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.limit, self.minimum = limit, minimum
        self.capabilities = Capabilities(remote=True, secure=True, least_in_sum=minimum)
        self.members = Members({}, dict(owners or {}), listed=owners is not None)
        self._name, self._sums = secrets.token_hex(16), 0

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Send the requests; with `reduce` the vectors come as secure sums, without it there may be none."""
        if reduce is None:
            refuse_vectors(requests, self.layout)
            yield from super().run(requests)
            return
        self._sums += 1
        name = f"{self._name}/{self._sums}"
        limits = self.limit, self.minimum
        exchange = SecureExchange(super().run, self.layout, *limits, self._faults, self.members, name)
        yield exchange.run(requests, reduce)
