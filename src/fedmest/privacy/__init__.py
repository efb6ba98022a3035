"""Gaussian differential privacy: arithmetic, budgets, accounting, noise, and the report of a run."""
