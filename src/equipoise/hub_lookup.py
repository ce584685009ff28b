"""Whether the hub has a model or a data set, answered in seconds.

The loaders of transformers and datasets retry an unreachable hub for half a minute a file, and say the
same of a mistyped folder as of a broken network. Here it is asked without retries, before them, and
nothing is downloaded.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

PATIENCE = 5.0  # seconds


class Lookup(NamedTuple):
    """`problem`: why the hub cannot give it, as the end of a sentence; empty where it may."""

    problem: str
    reachable: bool = True


def look_up(name: str, kind: Literal["model", "dataset"]) -> Lookup:
    from huggingface_hub import HfApi, errors

    try:
        HfApi().repo_info(name, repo_type=kind, timeout=PATIENCE)
    except errors.HFValidationError:
        return Lookup("no hub name has that form")
    except errors.GatedRepoError:  # it is there, and the loader says how to be let in
        return Lookup("")
    except errors.RepositoryNotFoundError:
        what = "data set" if kind == "dataset" else kind
        return Lookup(f"the hub has no such {what} that may be read from here")
    except errors.HfHubHTTPError:  # of the hub's own making, and the loader may be luckier
        return Lookup("")
    # each version of the client has other types for a connection that fails
    except Exception as error:
        reason = str(error).splitlines()[0]
        return Lookup(f"the hub cannot be reached ({reason})", reachable=False)
    return Lookup("")
