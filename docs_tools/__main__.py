"""`python -m docs_tools` writes the parts of README and docs that come from the code. No options."""

from __future__ import annotations

from docs_tools import before_after, drawings, parts, transcripts

parts.write()
drawings.write()
before_after.write()
transcripts.write()
