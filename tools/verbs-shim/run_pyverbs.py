"""Runs one module of pyverbs' tests, and prints a line for each test: `## ok|FAILED|skipped name why`.

    python3 run_pyverbs.py <folder of the tests> <device> <module>
"""

import importlib
import sys
import types
import unittest


class Result(unittest.TextTestResult):
    def _line(self, test, outcome, why=""):
        lines = str(why).strip().splitlines() or [""]
        # A failed set-up has the name of its class in brackets.
        name = test.id().replace(" ", "-")
        print("##", outcome, name, lines[-1], flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._line(test, "ok")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._line(test, "FAILED", error[1])

    def addError(self, test, error):
        super().addError(test, error)
        self._line(test, "FAILED", error[1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._line(test, "skipped", reason)


def main():
    folder, device, module = sys.argv[1:4]
    # Not the package's own start, which imports the modules of all vendors.
    tests = types.ModuleType("tests")
    tests.__path__ = [folder]
    sys.modules["tests"] = tests
    sys.path.insert(0, folder)
    sys.argv = ["tests", "--dev", device, "--gid", "0"]
    importlib.import_module("args_parser").parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"tests.{module}"))
    unittest.TextTestRunner(resultclass=Result, verbosity=0).run(suite)


main()
