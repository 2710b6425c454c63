"""Writes the parts of `docs/` and the README that come from the code; tests compare them with the pages.

- `before_after`: the chart of the README: a table's files after a plain writer, and after `compact`
- `blocks`: the code blocks of a page, and the text that introduces a block that is not run
- `command_reference`: the page of commands: groups, options and examples from click, and links
- `commands`: command lines in shell blocks and transcripts, run in this process or parsed
- `drawings`: the plot of the page of settings, from the benchmark `policy`, and the layers of the code
- `fault_pages`: the summary of the fault tests by component
- `lake`: a table full of small files, made without Spark, for transcripts and examples
- `messages`: texts that the code can print, as templates, for the page that explains them
- `parts`: the generated parts of pages, each between two comments
- `rooms`: the packages of the code: the layer and purpose of each, and the layers that each layer uses
- `transcripts`: the current output of the commands in transcripts

`python -m docs_tools` writes all of them. Imported by tests, never by icesize.
"""
