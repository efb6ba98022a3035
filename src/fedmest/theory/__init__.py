"""What to expect of a run before a row is read: the paper's bounds (`bounds`), and a prediction (`prediction`) for rows
from an assumed population (`population`)."""
