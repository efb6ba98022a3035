"""A page for planning a study before any data is touched: `fedmest explore`."""
