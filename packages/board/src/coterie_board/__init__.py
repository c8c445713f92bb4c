"""A leaderboard of methods over federations, with equal budgets and equal tuning, on Coterie's public API."""

from coterie_board.board import Board, run_board
from coterie_board.federations import FEDERATIONS, BoardFederation
from coterie_board.methods import METHODS

__all__ = ["FEDERATIONS", "METHODS", "Board", "BoardFederation", "run_board"]
