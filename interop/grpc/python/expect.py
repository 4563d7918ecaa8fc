"""How a case says what it expects."""

import grpc


class Failure(Exception):
    """A server has not done what a case expects."""


def expect(what, found, expected):
    if found != expected:
        raise Failure(f"{what}: expected {expected!r}, got {found!r}")


def expect_error(code, call, *arguments, **options):
    """Calls, and returns the error with which the call must end."""
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        expect("status code", error.code(), code)
        return error
    raise Failure(f"a call succeeded instead of ending with {code.name}")
