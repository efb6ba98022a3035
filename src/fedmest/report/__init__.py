"""Pages for people who do not read terminals: one HTML file each, which needs nothing else and no network."""
