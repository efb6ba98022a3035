"""What to expect of a run before a row is read: the paper's bounds (`bounds`)."""
