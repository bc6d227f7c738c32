"""Fixtures shared by the integration tests: a served page and a browser."""

from page_fixtures import browser, page, playwright, profile, served, window

__all__ = ["browser", "page", "playwright", "profile", "served", "window"]
