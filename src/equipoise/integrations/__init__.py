"""The same objectives inside other trainers. A module here needs its host installed, and of ours `objective` alone."""
