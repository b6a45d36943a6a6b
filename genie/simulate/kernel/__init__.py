"""The engine and the event loop of plain.py, compiled: no object a message, rows of integers instead.

All of it lives in one array of integers, `m`: first registers, then tables one after another. Register AT_TABLE says
where a table begins, CAP_TABLE how many rows there is room for; a row's field is found at
``m[m[AT_TABLE] + row * TABLE_WIDTH + TABLE_FIELD]`` (layout.py). (One array, since a compiled function that is handed
forty takes minutes to compile and ten times as long to run.) `f` holds latency in ns and bytes per ns of each
dimension.

Static tables are made by compiled_tables.py from a schedule. Pools (timers, streams, letters under way) hand their rows
out and take them back. `loop.advance` runs until all is done or a pool runs low; its caller then enlarges the pools and
calls it again. The rules, in the same order, are those of genie.engine and genie.network; docstrings say which function
of theirs a function here stands for.

Modules, each calling only those before it: layout, jit, pools, events, matching, network, programs, streams, ranks,
loop. All but layout import numba, so import them where they are needed. No function calls itself by way of others: a
cycle of calls would take numba long.
"""
