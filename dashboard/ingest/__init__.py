"""The way into the store: the ROUTER socket, spools that nobody ships, and the requests that go back.

Nothing here draws or answers a browser.
"""
