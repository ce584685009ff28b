"""Worker processes with hard deadlines, in which answers are compared and users' functions run."""
