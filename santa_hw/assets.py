"""Where the folders that are not Python lie: CUDA sources, RTL, energy tables; and the user's cache."""

import os
from pathlib import Path

NAMES = ("energy", "gpu", "rtl_models")

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Find one of the project's own data folders.

    A wheel carries them inside the package; a checkout has them beside it, so an editable
    install sees every edit.

    Parameters
    ----------
    name : str
        One of ``NAMES``.

    Returns
    -------
    Path
        An existing folder. Treat it as read-only: builds go to the user's cache.

    Raises
    ------
    ValueError
        If there is no such data folder.
    FileNotFoundError
        If the installation lacks it.

    Examples
    --------
    >>> path("energy").is_dir()
    True
    """
    if name not in NAMES:
        raise ValueError(f"name is {name!r}; allowed are {', '.join(NAMES)}")
    packaged = _PACKAGE / f"_{name}"
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    # Beside an installed package lie other people's packages, and one may well be called gpu.
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise FileNotFoundError(f"data folder {name!r} is neither in {_PACKAGE} nor beside it: reinstall santa-hw")


def cache() -> Path:
    """The folder of everything that santa-hw downloads, converts or builds; it need not exist.

    ``$SANTA_HW_CACHE``, else ``$XDG_CACHE_HOME/santa-hw``, else ``~/.cache/santa-hw``; absolute, as compilers run
    elsewhere. ValueError for a user without a home, such as a container's.
    """
    try:
        if own := os.environ.get("SANTA_HW_CACHE"):
            return Path(own).expanduser().absolute()
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared).expanduser().absolute() / "santa-hw"
        return Path.home() / ".cache" / "santa-hw"
    except RuntimeError as error:
        raise ValueError(
            "this user has no home folder: SANTA_HW_CACHE=FOLDER names where builds and downloads go"
        ) from error
