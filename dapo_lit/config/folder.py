"""Where the config files are."""

from pathlib import Path


def config_folder() -> Path:
    """`conf/`: inside an installed package, else at the top of the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"
