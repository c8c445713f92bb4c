"""Bad input of every kind, made by a seed: `make fuzz CASES=5000`, or `PYTHONPATH=tests python -m fuzz --help`.

A target makes one case from a random generator and tries it. Fine is: it was refused by an error of ours in one line,
or it was accepted and gives what it should. Everything else is a finding: another exception, a hang, another result.
"""
