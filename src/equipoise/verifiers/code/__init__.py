"""Whether a response's program passes a data set's tests, run in a sandbox."""
