"""The dashboard's exception tree. A class exists because someone catches it.

DashboardError            the command line prints its message, without a traceback
|-- NotASpoolError        a path that is not a spool
|-- UnknownRunError       no run, or more than one, answers to a name
|-- UnknownTrackError     a rank has no track of that name
|-- AddressInUseError     a port that another process holds
`-- DemoFailedError       the training process of `dashboard demo` ended with an error
"""

from __future__ import annotations


class DashboardError(Exception):
    """Root of every error that the dashboard raises on its own account; the message says what to do."""


class AddressInUseError(DashboardError):
    """The page's or the collector's address is taken."""


class UnknownRunError(DashboardError):
    """No run, or more than one, has the given id, prefix or name."""


class UnknownTrackError(DashboardError):
    """A rank has no track of that name; the message lists those that it has."""


class NotASpoolError(DashboardError):
    """A path that does not exist, is a file, or is a folder of something else."""


class DemoFailedError(DashboardError):
    """The training process of `dashboard demo` ended with an error."""
