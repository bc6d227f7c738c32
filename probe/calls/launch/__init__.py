"""`dashboard run`: how a script that knows nothing of the probe gets a session. Imports nothing by itself."""
