"""The parts of `audit.read`: what the files of a log hold, and what their writer meant by it.

files     Parquet, JSON lines and CSV in pieces          roles     which column is what
collect   the pieces of all files as one Log             ours, trl, verl   what is peculiar to a writer
"""
