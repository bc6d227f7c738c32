"""One module per subcommand: arguments in, lines and an exit code out. Called by `cli.py`, which prints."""
