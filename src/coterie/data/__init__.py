"""Data: sources (files to arrays), partitions (who holds what), shifts (what makes groups differ)."""
