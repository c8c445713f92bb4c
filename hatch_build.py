"""Where the project lives is a setting of a build: `COTERIE_URL=https://… make dist`."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

SETTINGS = {"Homepage": "COTERIE_URL", "Documentation": "COTERIE_DOCS_URL", "Issues": "COTERIE_ISSUES_URL"}


class ProjectUrls(MetadataHookInterface):
    """Fills in `project.urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses that the environment names."""
        metadata["urls"] = {name: os.environ[setting] for name, setting in SETTINGS.items() if os.environ.get(setting)}
