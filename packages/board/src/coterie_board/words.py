"""The words of the board's pages: what was run and by what rules, what follows from the numbers, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

from coterie_board.board import TUNING_SEED, Board
from coterie_board.federations import KINDS, BoardFederation
from coterie_board.methods import LEAST_RATE, METHODS, MOST_RATE, REFERENCE, TRIALS, VARIANTS
from coterie_board.standings import ALPHA, Ranking

STORED = "docs/results/leaderboard.json"


def introduction(board: Board, complete: Sequence[BoardFederation]) -> str:
    natural = sum(entry.kind == "natural" for entry in complete)
    return (
        f"{len(board.methods)} methods on {len(complete)} small federations, {natural} of them natural (nobody divided "
        f"the data), with {len(board.seeds)} seeds each. On each federation every method has the same rounds, the same "
        "bytes and as many tuning trials. Seeds are paired: a seed makes the same clients for all."
    )


def origin(board: Board, source: str) -> str:
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


def findings(ranking: Ranking, complete: Sequence[BoardFederation]) -> list[str]:
    """Sentences that follow from the ranks."""
    best, width = ranking.methods[0], ranking.critical_difference
    tied = [m for m in ranking.methods[1:] if ranking.mean(m) <= ranking.mean(best) + width]
    sure = ranking.friedman_p < ALPHA
    found = [
        f"By mean rank over the {len(ranking.federations)} federations the best is `{best}` ({ranking.mean(best):.1f} "
        f"of {len(ranking.methods)}). {len(tied)} others are within the critical difference of {width:.1f} ranks and "
        f"cannot be told from it: {method_names(tied)}. Friedman's test: p = {p_text(ranking.friedman_p)}, "
        + ("the methods are not all equally good." if sure else "the ranks do not show that any two differ.")
    ]
    for kind, words in KINDS.items():
        some = [entry.name for entry in complete if entry.kind == kind]
        if some:
            order = sorted(ranking.methods, key=lambda method: ranking.mean(method, some))
            leaders = ", ".join(f"`{method}` ({ranking.mean(method, some):.1f})" for method in order[:3])
            place = f"; `{REFERENCE}` is number {order.index(REFERENCE) + 1}" if REFERENCE in order else ""
            found.append(f"On the {len(some)} {words}, {leaders} lead by mean rank{place}.")
    return [*found, _against_reference(ranking)]


def _against_reference(ranking: Ranking) -> str:
    corrected = {method: p for method, (_, p) in ranking.against_reference.items() if p is not None and p < ALPHA}
    better = [method for method in corrected if ranking.mean(method) < ranking.mean(REFERENCE)]
    worse = [method for method in corrected if method not in better]
    test = "by Wilcoxon's test on the ranks with Holm's correction"
    if not corrected:
        return (
            f"No method is surely better or worse than `{REFERENCE}` over all federations {test}: each is better on "
            "some and worse on others."
        )
    parts = [f"{method_names(some)} {what}" for some, what in ((better, "better"), (worse, "worse")) if some]
    return f"Surely different from `{REFERENCE}` over all federations, {test}: {'; '.join(parts)}."


def method_names(methods: Sequence[str]) -> str:
    return ", ".join(f"`{method}`" for method in methods) or "nobody"


def p_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0e}" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def rank_words(ranking: Ranking) -> str:
    return (
        "On each federation the methods are ranked by the mean of its metric over the seeds; equal ones share a rank, "
        "and one that failed is last. A bar joins methods whose mean ranks are within Nemenyi's critical difference "
        f"({ranking.critical_difference:.1f} ranks for {len(ranking.methods)} methods on {len(ranking.federations)} "
        "federations, at the level of 5 %)."
    )


def matrix_words() -> str:
    return (
        "Mean over the seeds ± half the 95 % interval (Student's t; with three seeds it is 2.5 times their standard "
        "deviation, and it holds what differs from draw to draw of the clients). Bold: the best mean, as printed. "
        "Accuracy and AUC in %, higher is better; RMSE, lower is better."
    )


def federation_words() -> str:
    return (
        "Worst tenth: the mean over the tenth of the clients that is served worst. ARI: agreement of the clusters with "
        "the hidden groups, which no method sees; 1 is equal, 0 is chance. MB: sent up and down in a final run. CPU: "
        f"seconds of a final run. Difference: to `{REFERENCE}`, paired by seed, positive is better, with half its 95 % "
        "interval, and p after Holm's correction over the methods of the table. With three seeds this test is weak."
    )


def rules() -> list[str]:
    variants = "; ".join(
        f"`{method}` {' or '.join(f'`{option}`' if option else 'its defaults' for option in some)}"
        for method, some in VARIANTS.items()
    )
    return [
        f"Budget: all methods may use the same rounds, and twice the bytes that `{REFERENCE}` sends in them. A method "
        "that sends more per round stops earlier, after the round in which it reaches the limit. On digits-drift it is "
        "six times the bytes: with twice, `feddrift`, which first sends every model to everybody, would not reach the "
        "change.",
        f"Tuning: {TRIALS} trials per method and federation, on seed {TUNING_SEED}, which is none of the final seeds; "
        "on the tables a trial is a mean over several seeds, because validation data is scarce there. Validation data "
        "takes the place of test data, and the best value of the federation's metric is chosen, of equal ones that "
        f"with the lowest loss. A method tries {TRIALS} step sizes from {LEAST_RATE:g} to {MOST_RATE:g} times the "
        "federation's; one with a second setting tries two values of it and half as many step sizes. "
        f"Second settings: {variants}. All else is at its default.",
        "`groups` is run where something is known of the clients that could be their groups: public or Catholic school "
        "(hsb82), mixed, boys' or girls' school (exam). It is in no ranking: other federations know nothing of that.",
        "Fine-tuning at the end (`personalise=5` epochs with the step size of training) is part of `fedbabu`; where "
        "its tuning chose it, the accuracy is that after it. AUC, RMSE and the mean over the rounds of a drifting "
        "federation are those of the common model.",
        "CPU seconds of a method's first run in a process include what it has to load; for `flt` that is UMAP.",
    ]


def limits(board: Board) -> list[str]:
    return [
        "Sizes are small: tens of clients, tens of samples each, small networks, 30 to 60 rounds. A method that needs "
        "more rounds to find its clusters is at a disadvantage, and so is one that needs more data for its decisions.",
        f"{len(board.seeds)} seeds and one small tuning: a point on one federation is no difference. Read the ranks "
        "over many federations, and the intervals.",
        "Every client takes part in every round, in one process; no client is slow, lost or hostile.",
        "How many clusters there are was tuned over two values, 2 and 4, where a method must be told. Most of the made "
        "federations have 4 groups, so the grid helps these methods; natural ones have no such number.",
        "A rank is not a price: see the columns for bytes and CPU seconds.",
    ]


def third_party() -> str:
    return (
        f"The board has {len(METHODS)} methods of this package. Any other is added with one command, by the name under "
        "which an installed package offers it or by its class ([a method of your own](methods.md)). The stored rows "
        "are taken as they are; only the new method is tuned and run, with the same seeds and budgets. The second "
        "command writes the pages anew and runs nothing."
    )


def third_party_commands() -> str:
    return (
        f"coterie leaderboard --base {STORED} --add my_package.my_module:MyMethod --out runs/mine\n"
        f"coterie leaderboard --pages {STORED} --out docs"
    )
