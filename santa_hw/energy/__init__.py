"""Energy: operations times a table of energies per operation, a line a stage. The door to the folder ``energy/``.

A table is a TOML file (format: ``docs/reference/energy-tables.md``): of logic and on-chip memory, or of one off-chip
memory. Every number has a source and a confidence; a width that no entry has is scaled from those that are there, and
the bill says so.
"""

from santa_hw.energy.files import load_memory, load_table, names
from santa_hw.energy.pricing import Bill, Line, alone_and_streamed, bill
from santa_hw.energy.table import CONFIDENCES, MEMORY_KINDS, TABLE_OPERATIONS, Cost, Entry, Memory, Table

__all__ = [
    "CONFIDENCES",
    "MEMORY_KINDS",
    "TABLE_OPERATIONS",
    "Bill",
    "Cost",
    "Entry",
    "Line",
    "Memory",
    "Table",
    "alone_and_streamed",
    "bill",
    "load_memory",
    "load_table",
    "names",
]
