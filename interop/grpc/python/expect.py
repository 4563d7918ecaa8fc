"""How a case says what it expects."""

import grpc


class Failure(Exception):
    """A server has not done what a case expects. `code` is that of the call which has ended in another way than it
    should, and OK if all have ended well."""

    def __init__(self, message, code=grpc.StatusCode.OK):
        super().__init__(message)
        self.code = code


def expect(what, found, expected):
    if found != expected:
        raise Failure(f"{what}: expected {expected!r}, got {found!r}")


def expect_code(found, expected):
    if found != expected:
        raise Failure(f"status code: expected {expected.name}, got {found.name}", found)


def expect_error(code, call, *arguments, **options):
    """Calls, and returns the error with which the call must end."""
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        expect_code(error.code(), code)
        return error
    raise Failure(f"a call succeeded instead of ending with {code.name}")
