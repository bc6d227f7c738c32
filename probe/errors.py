"""The probe's exception tree. A class exists because someone catches it.

ProbeError
|-- AnomalyError        mode="raise": the only exception that detection sends into a training loop
|   `-- PolicyError     an input or output policy with action "raise"; a ValueError, too
|-- ReplayError         a replay that cannot go on; becomes the reason in its result
|   `-- KeptElsewhereError   the lines of a loss are not where they were looked for; perhaps elsewhere
|       `-- NotInLastLinesError  it went wrong before the lines since the newest call of the model
|-- BundleError         a bundle that cannot be written, read or replayed; says why
|-- WireError           bytes that are not a valid message or record
`-- JournalError        a spool, run folder or segment that cannot be used as one
"""

from __future__ import annotations


class ProbeError(Exception):
    """Root of every error that the probe raises on its own account."""


class AnomalyError(ProbeError):
    """Raised into the training loop at a critical event when `mode="raise"`."""

    # The one that users see: in a traceback it has the name under which they import it.
    __module__ = "probe"


class PolicyError(AnomalyError, ValueError):
    """Raised out of the watched model's call where a policy of the user's asks for it."""

    __module__ = "probe"


class ReplayError(ProbeError):
    """A replay must stop: a limit, a write to training state, a state that is not the step's own."""


class KeptElsewhereError(ReplayError):
    """The lines of a loss are not where they were looked for: another way may find them."""


class NotInLastLinesError(KeptElsewhereError):
    """The lines since the newest call of the model do not tell: those before them may."""


class BundleError(ProbeError):
    """A bundle that cannot be written, read or replayed, or a model that is not the bundle's."""


class WireError(ProbeError):
    """A message or record that does not decode, is too large or breaks a limit."""


class JournalError(ProbeError):
    """A path that is not a spool, or a segment whose header cannot be read."""
