"""What in `docs/` and the README comes from the code: written here, compared by the tests.

- `before_after`: the picture of the README: a table as a plain writer leaves it, and after `compact`
- `blocks`: the code blocks of a page, and what a reader is told of each
- `command_reference`: the page of commands: groups, options and examples as click knows them, and links
- `commands`: command lines in shell blocks and transcripts: run in this process, or parsed
- `drawings`: the plots of the policy page, from the simulation that the benchmark `policy` runs, and the rooms
- `fault_pages`: the page of faults: a summary by component, then the tests of each component
- `lake`: a table gone bad, made without Spark, for transcripts and examples
- `messages`: texts that the code can print, as templates, for the page that explains them
- `parts`: the parts of pages that are written from code, between two comments
- `rooms`: the rooms of the code: which floor each is on, what it is for, and which floor uses which
- `transcripts`: what the commands in transcripts print today

`python -m docs_tools` writes everything anew. Imported by tests, never by icesize.
"""
