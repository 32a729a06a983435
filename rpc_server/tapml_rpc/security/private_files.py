"""Files of this user alone: written, locked, and watched for changes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar

from tapml_targets.errors import InputError, SetupError

SECRET_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
FOLDER_MODE: Final = 0o700
FILE_BYTES: Final = 4 << 20
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022


def config_folder(*parts: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The user's folder of keys, lists and certificates; it is not created here.

    ``TAPML_CONFIG_DIR`` moves it; otherwise it is ``tapml`` below ``XDG_CONFIG_HOME``, by default
    ``~/.config``.
    """
    if chosen := environ.get("TAPML_CONFIG_DIR"):
        base = Path(chosen)
    else:
        base = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tapml"
    return base.joinpath(*parts)


def make_folder(folder: Path) -> None:
    """Create a folder for this user only; SetupError if that fails or others may write to it."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise SetupError(f"cannot make the folder {folder}: {error.strerror}") from None
    if mode & _OTHERS_WRITE:
        raise SetupError(
            f"others may write to {folder} (mode {stat.S_IMODE(mode):04o}) and so replace the keys "
            f"in it; choose another folder, or `chmod go-w {folder}`"
        )


# A unix socket's path has room for 107 bytes on Linux, 103 elsewhere.
_MOST_PLACE_BYTES: Final = 40


def new_folder(prefix: str) -> Path:
    """A new temporary folder for this user only, with room for a socket; raises SetupError."""
    try:
        short = len(os.fsencode(tempfile.gettempdir())) <= _MOST_PLACE_BYTES
        return Path(tempfile.mkdtemp(prefix=prefix, dir=None if short else "/tmp"))  # noqa: S108
    except OSError as error:
        raise SetupError(f"no temporary folder can be made: {error}; set TMPDIR") from None


def write_private(path: Path, text: str, *, mode: int = SECRET_MODE, replace: bool = False) -> None:
    """Write a complete file, with its mode from the first byte on; raises if it exists."""
    temporary = None
    claimed = False
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        if not replace:
            # The name is taken before the content moves there: of two writers, one succeeds. A hard
            # link would do both in one step, if the file system has them; Android's has not.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            claimed = True
        temporary.replace(path)
        claimed = False
        _sync_folder(path.parent)
    except FileExistsError:
        raise InputError(f"{path} exists; it is kept") from None
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if claimed:
            path.unlink(missing_ok=True)


def read_checked(path: Path, *, secret: bool, limit: int) -> str:
    """Read a small text file that others may not change or, if it is `secret`, read.

    Raises InputError if it is missing, not a text file, or larger than `limit` bytes; SetupError if
    its mode gives others access; the message names the ``chmod``.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path} is not a file")
            check_mode(path, status.st_mode, secret=secret)
            data = file.read(limit + 1)
    except OSError as error:
        make = "; `tapml rpc keygen` makes such files" if error.errno == errno.ENOENT else ""
        raise InputError(f"cannot read {path}: {error.strerror}{make}") from None
    if len(data) > limit:
        raise InputError(f"{path} has more than {limit} bytes: it is not a file of this kind")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text: it is damaged, or another kind of file") from None


def check_mode(path: Path, mode: int, *, secret: bool) -> None:
    """Raise SetupError if others may read a secret file, or write any."""
    shown = f"{stat.S_IMODE(mode):04o}"
    if secret and mode & _OTHERS:
        raise SetupError(
            f"others may read the secret in {path} (mode {shown}); it is not used. If nobody has, "
            f"`chmod 600 {path}`; else make a new one"
        )
    if mode & _OTHERS_WRITE:
        raise SetupError(
            f"others may write to {path} (mode {shown}); it is not trusted. Check its content, "
            f"then `chmod go-w {path}`"
        )


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for this process while a file in it is read, changed and written."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Content = TypeVar("Content")


class WatchedFile(Generic[Content]):
    """The present content of a file; empty if the file is missing.

    `parse` takes the text and the name for errors. `secret`: others must not read it.
    """

    def __init__(
        self, path: Path, parse: Callable[[str, str], Content], *, secret: bool = False
    ) -> None:
        self.path = path
        self._parse = parse
        self._secret = secret
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._content: Content | None = None

    def read(self) -> Content:
        """The content; from any thread.

        Raises InputError, which names the line, if the file is damaged, and SetupError if others
        may write to it, or read it if it is secret.
        """
        with self._lock:
            try:
                status = self.path.stat()
            except FileNotFoundError:
                self._seen = None
                return self._parse("", str(self.path))
            except OSError:
                # read_checked reports what is wrong.
                seen = None
            else:
                seen = _stamp(status)
            if seen is None or seen != self._seen or self._content is None:
                self._seen = None
                text = read_checked(self.path, secret=self._secret, limit=FILE_BYTES)
                self._content = self._parse(text, str(self.path))
                self._seen = seen
            return self._content


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    # The mode too: a list that others may write to is not trusted from then on.
    return (
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
        status.st_ino,
        status.st_dev,
        status.st_mode,
    )
