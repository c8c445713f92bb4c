"""What shows a run: its report, the live page, the verdict against baselines, notebooks and trackers."""
