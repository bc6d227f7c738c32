"""What a running dashboard gives to other systems: metrics, webhooks, OpenTelemetry. Only `serve` starts it.

Everything is read from the store, on threads of its own; nothing here takes part in ingest, and nothing that
comes over the wire configures it.
"""
