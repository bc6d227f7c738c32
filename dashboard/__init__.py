"""The dashboard: collects what probes ship, stores it, and shows it. Never imports torch."""
