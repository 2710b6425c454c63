"""Selection and schedule of merges. No I/O.

- `after_write`: new rows inside the small files of their partition: what is merged when new files may be merged at
  once
- `contention`: where merging waits because other writers change rows of the same partitions
- `groups`: small files of a partition -> merge groups, and which groups a budget pays for
- `moves`: which files of old partition specs go into partitions of the current one
- `planner`: layout + SizePolicy -> Plan: which small files are merged now, and why the others are not
- `chosen_files`: which small files of one partition to merge now, so that few remain and little is rewritten over time
- `standing`: the state of partitions that a plan leaves as they are, of one or of all that a batch does not touch
- `simulation`: the cost of merging the batches that a table got, replayed through the planner under several policies
"""

from icesize.planning.merging.chosen_files import choose_prefix

__all__ = ["choose_prefix"]
