"""Mininet nodes for switches and hosts that replicate: see docs/mininet.md.

fabric, shipped, formats and config say what a network is like, and need nothing
but Python. nodes and net run it, and need Mininet 2.3. isolate gives it namespaces
that end with it; multicast tests and measures it.
"""
