"""Dash callbacks: the control plane of the page."""
