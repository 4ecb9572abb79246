"""The same as many_prompts.py, under the name that people look for.

The standard library has a package of this name, and a script's own folder comes first on the path: imported
from a script beside it, this file stands aside for that package.
"""

import os
import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("many_prompts.py")), run_name="__main__")
else:
    __path__ = [str(Path(os.__file__).parent / "concurrent")]
