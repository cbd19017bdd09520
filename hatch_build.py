"""Build hook: the wheel carries the data folders inside the package."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Adds ``gpu/`` as ``santa_hw/_gpu``, and so on for every name that ``santa_hw.assets`` knows."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable install reads the checkout's own folders: a copy would only grow stale.
        if version == "editable":
            return
        names = runpy.run_path(str(Path(self.root, "santa_hw", "assets.py")))["NAMES"]
        build_data["force_include"].update({name: f"santa_hw/_{name}" for name in names})
