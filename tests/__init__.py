"""The tests of icesize, in the rooms of what they test; what several of them need is in `tests.support`."""

import pytest

# so that the assertions of helpers tell what they compared, too
pytest.register_assert_rewrite("tests.support")
