from pathlib import Path
from coterie_board.board import Board


def write_pages(board: Board, out: Path) -> None:
    pass
