"""Calls a gRPC server as any Python program does, with grpcio.

    client.py CASE@HOST:PORT...       runs these cases
    client.py CASE@HOST:PORT=CODE...  runs them against servers that they must not accept, because a call ends with
                                      this status code, or with one of several, as in UNAVAILABLE|INTERNAL; with
                                      OK, because of something else that the server does

It prints a line for each, and ends with exit code 1 if one has not ended as it should. Any other
exit code is an error of this program.
"""

import sys
import time

import cases
import routes
import services
from expect import Failure

import grpc

CASES = cases.CASES | routes.CASES | services.CASES


def run(case, target, must_end_with):
    """Runs a case. Returns whether it has ended as it should."""
    begun = time.monotonic()
    try:
        with cases.connect(target) as channel:
            what, code = CASES[case](channel, target), None
    except Failure as failure:
        what, code = str(failure), failure.code
    except grpc.RpcError as error:
        what, code = f"a call ended with {error.code().name}: {error.details()}", error.code()
    took = time.monotonic() - begun
    if not must_end_with:
        outcome = "FAILED " if code else "passed "
    elif code and code.name in must_end_with.split("|"):
        outcome = "refused"
    else:
        outcome, what = "FAILED ", f"expected the end {must_end_with}: {what}"
    print(f"{outcome}  python  {case:28} {took:6.2f} s  {what}", flush=True)
    return outcome != "FAILED "


def main():
    outcomes = []
    for argument in sys.argv[1:]:
        case, target = argument.split("@")
        target, _, code = target.partition("=")
        outcomes.append(run(case, target, code))
    sys.exit(0 if all(outcomes) else 1)


main()
