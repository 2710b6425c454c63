"""One table on one page: its files before and after, its partitions over time, what batches cost, and what to do.

Drawn by matplotlib, which `icesize[report]` installs and `charts` alone imports.

- `charts`: the pictures, as SVG within a page and all together as PNG
- `facts`: what the page says, as plain values, and the sentences of advice
- `gather`: reads it from a table
- `overview`: the value that people get, which writes itself as a page or an image
- `page`: the HTML page: one file that needs no network and runs no script
"""
