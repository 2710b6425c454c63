"""Output for people: text in a terminal, and the report of a table as a page or an image.

matplotlib draws the charts. `icesize[report]` installs it, and only `charts` imports it.

- `blocks`: lines, bars and tables, rendered as plain text, as colored text in a terminal or as HTML
- `charts`: the charts of a page, each as SVG for the page, all together as PNG
- `console`: prints blocks and errors to a terminal or a pipe
- `display`: the view of each class of results
- `facts`: the content of the page as plain values, and the sentences of advice
- `gather`: reads these facts from a table
- `overview`: the result that the user receives, which writes itself as a page or an image
- `page`: the HTML page: one file that needs no network and runs no script
- `progress`: progress bars in a terminal
- `views`: the layout of each result, in blocks
"""
