"""Errors of a compiler that is not here: nothing raises them, programs name them in `except`."""


class TorchDynamoException(RuntimeError):
    """The base of them."""


class BackendCompilerFailed(TorchDynamoException):
    """A backend could not compile a graph."""


class InternalTorchDynamoError(TorchDynamoException):
    """The compiler itself failed."""


class Unsupported(TorchDynamoException):
    """Python that cannot be put into a graph."""


class UserError(Unsupported):
    """A program that cannot be put into a graph."""
