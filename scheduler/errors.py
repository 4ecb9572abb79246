"""Errors of the engine, as its users meet them.

CallboardError                 everything that this project raises on purpose
├── ConfigError                a setting is unknown, out of range, or contradicts another
├── ModelLoadError             a model's files are missing, damaged or of an unsupported kind
├── InvalidRequestError        a request can never be served as it was asked for
│   └── NotBuiltError          it names a feature that this version refuses
├── EngineOverloadedError      the waiting room is full: the same request may be sent again later
│   └── EnginePausedError      the engine is paused and takes no requests: likewise
├── EngineDeadError            the engine ended with an error, which is its __cause__
├── RequestFailedError         something of the user's that a request met failed: a stop rule
├── RunnerError                a runner gave a result that cannot be right, or more than is built; or it was ended
├── PolicyError                a policy of the user failed, or answered what cannot be
├── MisuseError                a method was called at a time at which it may not be
└── BooksError                 an audit found counts that do not agree (a fault of ours)

Texts say what was wrong, what was got, what the limit is, and which request it was.
"""

from ..actors.errors import CallboardError, ConfigError

__all__ = [
    "BooksError",
    "CallboardError",
    "ConfigError",
    "EngineDeadError",
    "EngineOverloadedError",
    "EnginePausedError",
    "InvalidRequestError",
    "MisuseError",
    "ModelLoadError",
    "NotBuiltError",
    "PolicyError",
    "RequestFailedError",
    "RunnerError",
]


class ModelLoadError(CallboardError):
    """A model's files are missing, damaged or of an unsupported kind."""


class InvalidRequestError(CallboardError, ValueError):
    """A request can never be served as it was asked for; nothing was held for it."""


class NotBuiltError(InvalidRequestError):
    """The request names a feature that this version refuses rather than ignores."""


class RequestFailedError(CallboardError):
    """A request failed, and not by what it asked for: a stop rule of the user did."""


class RunnerError(CallboardError):
    """A runner gave a result that cannot be right, or names what is not built; it ends the engine, or one request.

    Or its thread was ended by what is no ``Exception`` (a SystemExit, say), which is ``__cause__``.
    """


class MisuseError(CallboardError):
    """A method was called at a time at which it may not be; nothing has changed."""


class PolicyError(CallboardError):
    """A scheduling policy of the user failed, or answered what cannot be; its own error is ``__cause__``."""


class EngineOverloadedError(CallboardError):
    """The waiting room is full; the same request may be sent again later."""

    code = "engine_overloaded"
    retryable = True


class EnginePausedError(EngineOverloadedError):
    """The engine is paused in a mode that takes no requests; the same request may be sent again after ``resume``."""

    code = "engine_paused"


class EngineDeadError(CallboardError):
    """The engine has ended; its one cause is ``__cause__``."""


class BooksError(CallboardError):
    """An audit found counts that do not agree; the text holds the numbers."""
