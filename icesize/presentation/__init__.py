"""Everything that people see: text for a terminal, and the report of a table as a page or an image.

matplotlib draws; `icesize[report]` installs it and `charts` alone imports it.

- `blocks`: lines, bars and tables, from which text, colours in a terminal and HTML are made
- `charts`: the pictures, as SVG within a page and all together as PNG
- `console`: blocks and errors on a terminal or in a pipe
- `facts`: what the page says, as plain values, and the sentences of advice
- `gather`: reads it from a table
- `overview`: the value that people get, which writes itself as a page or an image
- `page`: the HTML page: one file that needs no network and runs no script
- `progress`: progress bars in a terminal
- `views`: what each result looks like, in blocks
"""
