"""The tools that hold pages against the code see what they are there to see."""

from __future__ import annotations

from pathlib import Path

from docs_tools.blocks import Block, blocks
from docs_tools.command_reference import SEE_ALSO, groups
from docs_tools.commands import command_lines, is_run
from docs_tools.fault_pages import COMPONENTS
from docs_tools.parts import rewritten
from docs_tools.transcripts import replaced, without_numbers
from icesize.cli.main import main
from integration.faults.catalogue import FAULTS


def _shell(code: str, language: str = "shell") -> Block:
    return Block(Path("page.md"), 1, language, code)


def test_commands_are_found_wherever_they_stand() -> None:
    """In a cron table, in quotation marks, over two lines, before a pipe; not in comments, nor where pip installs."""
    code = (
        "# icesize nothing here\n"
        "17 * * * *  icesize maintain lake.db.events --json\n"
        'BashOperator(bash_command="icesize compact lake.db.events --json")\n'
        "icesize inspect lake.db.events \\\n  --where \"hour = 'h07'\" | less\n"
        "pip install icesize venv-pack\n"
    )
    assert command_lines(_shell(code)) == [
        ["maintain", "lake.db.events", "--json"],
        ["compact", "lake.db.events", "--json"],
        ["inspect", "lake.db.events", "--where", "hour = 'h07'"],
    ]


def test_only_what_is_typed_is_a_command_of_a_transcript() -> None:
    """Advice that a command prints is no command."""
    code = "$ icesize inspect lake.db.events\n! run `icesize compact lake.db.events`\n"
    assert command_lines(_shell(code, "console")) == [["inspect", "lake.db.events"]]


def test_what_starts_spark_is_not_run() -> None:
    """A command that would end the session of the tests is parsed alone."""
    assert is_run(["compact", "lake.db.events"])
    assert not is_run(["compact", "lake.db.events", "--master", "local[2]"])


def test_transcripts_differ_by_words() -> None:
    """Ids, sizes, seconds and bars may differ from day to day; a word may not."""
    told = "snapshot 5545809313640514413 replace  -192 +12 files\n< 24 KiB  192  ██████▎\n"
    later = "snapshot 8214527757674153200 replace  -96 +7 files\n< 24 KiB     8  ██\n"
    told += "query 7b972678-8d22-47c2-91ef-610d64cb5b92\n"
    later += "query 2819e210-9bc3-446e-bcb9-75fe3be8782b\n"
    assert without_numbers(told) == without_numbers(later)
    assert without_numbers(told) != without_numbers(later.replace("replace", "overwrite"))


def test_a_transcript_in_a_list_keeps_its_indentation(tmp_path: Path) -> None:
    """New output goes between the fences of its block, also below a step of a list."""
    page = tmp_path / "page.md"
    page.write_text("1. Step\n\n    ```console\n    $ icesize plan\n    old\n    ```\n\nend\n")
    (block,) = blocks(page, "console")
    told = replaced(page.read_text(), block, "$ icesize plan\nnew\n\nlines\n")
    assert told == "1. Step\n\n    ```console\n    $ icesize plan\n    new\n\n    lines\n    ```\n\nend\n"


def test_indented_code_is_a_block_of_no_language(tmp_path: Path) -> None:
    """Code that stands without a fence is seen, and so refused."""
    page = tmp_path / "page.md"
    page.write_text("Text:\n\n    rm -rf /\n\n```python\npass\n```\n")
    assert [(block.language, block.line) for block in blocks(page)] == [("", 3), ("python", 5)]


def test_parts_are_written_between_their_marks(tmp_path: Path) -> None:
    """Only what stands between the two comments is replaced."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: policy-keys -->\nstale words\n<!-- end: policy-keys -->\nafter\n")
    told = rewritten(page)
    assert told.startswith("before\n<!-- begin: policy-keys -->\n")
    assert told.endswith("<!-- end: policy-keys -->\nafter\n")
    assert "stale words" not in told
    assert "max-small-files" in told


def test_each_command_is_in_a_group_and_links_on() -> None:
    """The page of commands has the groups of the help, each command once, each with a link to its output or guide."""
    listed = [command.name for commands in groups().values() for command in commands]
    assert sorted(map(str, listed)) == sorted(main.commands) == sorted(SEE_ALSO)
    assert len(groups()) > 1


def test_each_fault_is_in_a_component() -> None:
    """The page of faults has each fault once."""
    assert sorted(number for component in COMPONENTS for number in component.faults) == sorted(FAULTS)
