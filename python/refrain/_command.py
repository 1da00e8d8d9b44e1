"""The command `refrain` of the wheel: the program that it carries."""
import os
import sys
from pathlib import Path


def main():
    program = str(Path(__file__).parent / "libexec/refrain/refrain")
    os.execv(program, [program, *sys.argv[1:]])
