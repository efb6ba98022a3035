"""Gaussian differential privacy: arithmetic, splitting a budget, noise, and the statement that a report carries."""
