"""Fixtures shared by the integration tests: a served page and a browser."""

from page_fixtures import browser, page, served

__all__ = ["browser", "page", "served"]
