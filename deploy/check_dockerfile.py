"""Execute the Dockerfile in an empty folder, without containers.

python3.11 deploy/check_dockerfile.py

A virtual environment takes the place of the base image. COPY copies what .dockerignore admits, RUN
runs with the paths of the image inside the folder, and without the change of user. A collection is
then built with the entry point, served with the default command, and probed by the health check.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PLACES = re.compile(r"(?<![\w.])/(?=(antipodal|data|run)\b)")
# Only root may add users and change owners.
STUBS = {
    "useradd": "#!/bin/sh\n",
    "install": '#!/bin/sh\nfor folder; do :; done\nexec mkdir -p "$folder"\n',
}
HEALTHY_SECONDS = 120


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile and their arguments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def main() -> None:
    """Execute the Dockerfile, and raise an error if a step fails."""
    if sys.version_info[:2] != (3, 11):
        sys.exit("the image has Python 3.11: run this script with it")
    with tempfile.TemporaryDirectory() as folder:
        Image(Path(folder).resolve()).execute((PROJECT / "Dockerfile").read_text())


class Image:
    """A folder in the place of an image."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.settings = root, root, dict[str, str]()
        inherited = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
        path = f"{root}/stubs:{root}/python/bin:/usr/bin:/bin"
        self.environment = inherited | {"PATH": path, "HOME": str(root / "home")}
        venv.create(root / "python", with_pip=True)
        (root / "stubs").mkdir()
        for name, script in STUBS.items():
            (root / "stubs" / name).write_text(script)
            (root / "stubs" / name).chmod(0o755)

    def execute(self, dockerfile: str) -> None:
        """Execute all instructions, and then the image."""
        for name, rest in instructions(dockerfile):
            start = time.monotonic()
            match name:
                case "COPY":
                    self.copy(rest.split())
                case "RUN":
                    self.run(["/bin/sh", "-ec", self.inside(rest)])
                case "ENV":
                    variable, _, value = rest.partition("=")
                    self.environment[variable] = self.inside(value)
                case "WORKDIR":
                    self.work = Path(self.inside(rest))
                case "FROM" | "USER" | "VOLUME" | "EXPOSE" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                    self.settings[name] = rest
                case _:
                    raise ValueError(f"unknown instruction {name}")
            print(f"{time.monotonic() - start:6.1f} s  {name} {rest[:70]}", flush=True)
        self.serve()

    def inside(self, text: str) -> str:
        """Return a text with the paths of the image inside the folder."""
        return PLACES.sub(f"{self.root}/", text)

    def run(self, command: list[str]) -> None:
        """Run a command as in the image."""
        subprocess.run(command, check=True, cwd=self.work, env=self.environment)

    def copy(self, words: list[str]) -> None:
        """Copy files of the project."""
        admitted = (PROJECT / ".dockerignore").read_text().splitlines()
        *sources, target = words
        for source in sources:
            if f"!{source}" not in admitted:
                raise ValueError(f".dockerignore excludes {source}")
            place = Path(self.inside(target))
            if (PROJECT / source).is_dir():
                shutil.copytree(
                    PROJECT / source, place, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT / source, place)

    def serve(self) -> None:
        """Build a collection, serve it, and wait until the health check succeeds."""
        entry = json.loads(self.settings["ENTRYPOINT"])
        rng = random.Random(0)
        rows = ([rng.gauss(0, 1) for _ in range(32)] for _ in range(300))
        vectors = self.root / "vectors.csv"
        vectors.write_text("\n".join(",".join(map(str, row)) for row in rows))
        self.run([*entry, "build", str(vectors), "--bits", "32"])
        secrets = self.root / "run" / "secrets"
        secrets.mkdir(parents=True)
        (secrets / "keys").write_text("write a-key-for-this-check-only\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        here = {"0.0.0.0": "127.0.0.1", "8000": port}
        command = [here.get(word, self.inside(word)) for word in json.loads(self.settings["CMD"])]
        probe = json.loads(self.settings["HEALTHCHECK"].partition("CMD ")[2])
        probe = [word.replace(":8000/", f":{port}/") for word in probe]
        start = time.monotonic()
        service = subprocess.Popen([*entry, *command], cwd=self.work, env=self.environment)
        try:
            while subprocess.run(probe, env=self.environment, capture_output=True).returncode:
                if service.poll() is not None or time.monotonic() - start > HEALTHY_SECONDS:
                    raise RuntimeError("the service is not healthy")
                time.sleep(0.5)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(timeout=70)
        print(
            f"{time.monotonic() - start:6.1f} s  served, healthy and stopped: {service.returncode}"
        )


if __name__ == "__main__":
    main()
