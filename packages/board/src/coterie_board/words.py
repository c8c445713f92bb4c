"""The words of the board's pages: what was run and by what rules, what follows from the numbers, and what does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie_board.board import TUNING_SEED, Board
from coterie_board.cell import VALIDATION
from coterie_board.federations import STRATA, BoardFederation
from coterie_board.methods import METHODS, ORACLE, REFERENCE, TUNED_AT_THE_END, VARIANTS
from coterie_board.standings import ALPHA
from coterie_board.strata import LEAST_ERROR, Ranking
from coterie_board.tuning import WIDEST

STORED = "docs/results/leaderboard.json"


def introduction(board: Board, complete: Sequence[BoardFederation]) -> str:
    return (
        f"{len(board.methods)} methods on {len(board.federations)} federations in {len(STRATA)} strata, with "
        f"{len(board.seeds)} seeds each, all tuned alike and trained until they make no more progress or have spent "
        "the same passes over the data. Seeds are paired: a seed makes the same clients for all methods. "
        + state(board, complete)
    )


def state(board: Board, complete: Sequence[BoardFederation]) -> str:
    """How much of the board is there."""
    if len(complete) == len(board.federations):
        return "All of it has been computed."
    return (
        f"**Unfinished: {len(complete)} of {len(board.federations)} federations have been computed.** What is missing "
        "is named [below](#the-federations); nothing on this page is of another protocol."
    )


def origin(board: Board, source: str) -> str:
    if not board.results:
        return "Nothing has been computed yet by this protocol."
    about, base = board.about, board.about.get("base")
    first = f" The rows before were computed by `{base['command']}` at commit {base['commit']}." if base else ""
    return (
        f"Computed by `{about.get('command')}` at commit {about.get('commit')} on {about.get('date')} "
        f"({about.get('machine')}): {cpu_hours(board):.2f} CPU hours, tuning included.{first} All numbers, every trial "
        f"and the choice of each tuning are in [leaderboard.json]({source}). This page and [board.html](board.html), "
        "the same as one file, are made of it by `coterie leaderboard --pages`."
    )


def cpu_hours(board: Board) -> float:
    """CPU hours of all runs, trials among them."""
    seconds = sum(
        one["cpu"]
        for rows in board.results.values()
        for found in rows.values()
        for one in [*found["trials"], *found["runs"]]
    )
    return float(seconds / 3600)


def findings(ranking: Ranking) -> list[str]:
    """Sentences that follow from the ranks and effects of a stratum."""
    best, width = ranking.methods[0], ranking.critical_difference
    tied = [m for m in ranking.methods[1:] if ranking.mean(m) <= ranking.mean(best) + width]
    sure = ranking.friedman_p < ALPHA
    others = (
        f"Not to be told from it by ranks: {method_names(tied)}." if tied else "All others have surely worse ranks."
    )
    found = [
        f"By mean rank over {len(ranking.federations)} federations the best is `{best}` ({ranking.mean(best):.1f} of "
        f"{len(ranking.methods)}; critical difference {width:.1f}). {others} Friedman's test: "
        f"p = {p_text(ranking.friedman_p)}, "
        + ("the methods are not all equally good." if sure else "the ranks do not show that any two differ.")
    ]
    surely = {row: effect for row, effect in ranking.effects.items() if effect.sure}
    better = [row for row, effect in surely.items() if effect.mean > 0]
    worse = [row for row in surely if row not in better]
    parts = [f"{what}: {method_names(some)}" for what, some in (("less error", better), ("more error", worse)) if some]
    text = "; ".join(parts) or "none, after Holm's correction"
    return [*found, f"Surely other than `{REFERENCE}` over these federations: {text}."]


def method_names(methods: Sequence[str]) -> str:
    return ", ".join(f"`{method}`" for method in methods)


def p_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0e}" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def less_error(log_ratio: float) -> str:
    """A mean log ratio of errors as a change of the error in percent."""
    return f"{100 * (math.exp(-log_ratio) - 1):+.0f} %"


def rank_words() -> str:
    return (
        "On each federation the methods are ranked by the mean of its metric over the seeds; equal ones share a rank, "
        "and one that failed is last. A bar in the picture joins methods whose mean ranks are within Nemenyi's "
        f"critical difference at the level of 5 %. *Error to {REFERENCE}*: how much more or less error than "
        f"`{REFERENCE}`, what accuracy or AUC lacks to 1, or the RMSE; the geometric mean over the federations with "
        "its 95 % interval (Student's t over the logarithms), and p after Holm's correction within the stratum. "
        f"*Regret*: how much more error than `{ORACLE}`, which is told the groups, where they are known. "
        f"Errors below {LEAST_ERROR:g} count as {LEAST_ERROR:g}."
    )


def matrix_words() -> str:
    return (
        "Mean over the seeds ± half the 95 % interval (Student's t, which holds what differs from draw to draw of the "
        "clients). Bold: the best mean, as printed. Accuracy and AUC in %, higher is better; RMSE, lower is better."
    )


def federation_words() -> str:
    return (
        "Worst tenth: the mean over the tenth of the clients that is served worst. Variance: of the metric, over the "
        "clients. ARI: agreement of the clusters with the hidden groups, which no method sees; 1 is equal, 0 is "
        "chance. Concept: the metric where each client has the model that most clients of its group have; empty where "
        "clients keep layers of their own. Conflict: of all pairs of clients of other groups, the share in one "
        "cluster. Passes: of a client over its data, on average. MB: sent up and down. CPU: seconds of a final run. "
        f"Difference: to `{REFERENCE}`, paired by seed, positive is better, with half its 95 % interval, and p after "
        "Holm's correction over the methods of the table."
    )


def rules() -> list[str]:
    tuned = "; ".join(
        f"`{method}` {', '.join(f'`{option}`' if option else 'its defaults' for option in some)}"
        for method, some in VARIANTS.items()
    )
    return [
        "Training: a run ends when the federation's metric on validation data has not risen for 30 rounds, and has the "
        "models of its best round; or when its clients have spent the federation's budget of passes over their data, "
        f"seeding and checks included. Where data comes without validation data, {VALIDATION:.0%} of each client's "
        "training data are. Where data changes with time, in round 31, all methods have 60 rounds.",
        f"Tuning: on seed {TUNING_SEED}, which is none of the final seeds, with validation data in the place of test "
        "data; on some tables a trial is a mean over several seeds. A method's step sizes lie half a decade apart: it "
        "tries the federation's and one to either side, and goes on to the side of the best one until that is inside, "
        f"over {WIDEST} half decades at the most. Then it tries every value of its own option with that step, and "
        "tunes the step again for the best. The truth is in no choice: the numbers of clusters are the same for all "
        "federations, and a method that can decides by itself first. All else is at its default. Own options, the "
        f"first one first: {tuned}.",
        f"`{ORACLE}` is told the hidden groups, or what is declared of the clients (public or Catholic school in "
        "hsb82; mixed, boys' or girls' school in exam). It is in no ranking.",
        f"`{TUNED_AT_THE_END}` is `{REFERENCE}` whose clients fine-tune the model for five epochs at the end, with the "
        "step size of training; it has a row where the metric is accuracy. `fedbabu` may choose the same.",
    ]


def limits(board: Board) -> list[str]:
    return [
        "Sizes are small: tens of clients, or a hundred with ten in a round, tens of samples each, small networks.",
        "An interval over a stratum's federations says how the next federation of this kind may come out, as far as "
        "these eight or so stand for it: they were chosen by us.",
        "All runs are in one process; no client is slow, lost or hostile.",
        "A rank is not a price: see the columns for passes, bytes and CPU seconds.",
    ]


def third_party() -> str:
    return (
        f"The board has {len(METHODS)} rows of ours. Any other is added with one command, by the name under "
        "which an installed package offers it or by its class ([a method of your own](methods.md)). The stored rows "
        "are taken as they are; only the new method is tuned and run, with the same seeds and budgets. The second "
        "command writes the pages anew and runs nothing."
    )


def third_party_commands() -> str:
    return (
        f"coterie leaderboard --base {STORED} --add my_package.my_module:MyMethod --out runs/mine\n"
        f"coterie leaderboard --pages {STORED} --out docs"
    )
