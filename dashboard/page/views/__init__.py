"""Views: pure functions from data to figures and components."""
