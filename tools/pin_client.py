"""Writes a file of tests/clients/pins anew: the newest versions of what its first line names and of all below, from PyPI,
with the digests of the wheels that fit Linux on x86-64 and Python 3.11 to 3.13 (of the source where there is none). Run by tools/clients --pin."""
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

FITS = re.compile(r"-(?:(?:py3|py31[123]|py2\.py3)-none|cp31[123]-cp31[123]|cp3\d+-abi3)"
                  r"-(?:any|(?:manylinux\w+\.)*manylinux\w*x86_64(?:\.manylinux\w+|\.linux_x86_64)*)\.whl$")


def locked(uv, requirements):
    with tempfile.TemporaryDirectory() as folder:
        source, lock = Path(folder, "in.txt"), Path(folder, "pylock.toml")
        source.write_text("\n".join(requirements) + "\n")
        subprocess.run([uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", source,
                        "--output-file", lock], check=True, stdout=subprocess.DEVNULL)
        return tomllib.loads(lock.read_text())["packages"]


def pin(package):
    wheels = [wheel for wheel in package.get("wheels", []) if FITS.search(wheel["url"])]
    marker = f" ; {package['marker']}" if "marker" in package else ""
    if not wheels and package.get("wheels"):
        if "platform" not in marker:
            raise SystemExit(f"{package['name']} {package['version']} has no wheel for Linux")
        return ""
    digests = sorted({file["hashes"]["sha256"] for file in wheels or [package["sdist"]]})
    lines = [f"{package['name']}=={package['version']}{marker}", *(f"    --hash=sha256:{digest}" for digest in digests)]
    return " \\\n".join(lines) + "\n"


def main():
    uv, target = sys.argv[1], Path(sys.argv[2])
    first = target.read_text().splitlines()[0]
    requirements = first.removeprefix("# from: ").split()
    target.write_text(first + "\n" + "".join(pin(package) for package in locked(uv, requirements)))


if __name__ == "__main__":
    main()
