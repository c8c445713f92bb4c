"""Faults of the system under a run, made by a seed: `make chaos FAULTS=300`, or `PYTHONPATH=tests python -m chaos`.

A fault is survived if the run, or its resumption once the fault is over, gives the result of a run without faults, bit
for bit, or if damage that was done to its files is found and named. Everything else is a loss or another result.
"""
