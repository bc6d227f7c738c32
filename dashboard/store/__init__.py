"""Where runs are kept: the `Store` protocol and its DuckDB implementation."""
