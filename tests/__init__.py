"""The tests of icesize, in the rooms of what they test; what several of them need is in `tests.support`."""

import sys

# so that the assertions of helpers tell what they compared, too; programs of tests run in environments without pytest
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite("tests.support")
