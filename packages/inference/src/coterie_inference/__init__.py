"""A finished run's models at work: predict, evaluate, export, place newcomers, notice drift."""
