"""What asks for a session: a person's calls, and the launch of unmodified scripts.

The trainers' callbacks stand beside it, in `integrations`.
"""
