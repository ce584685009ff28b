"""The auditor: which biases an objective has on a rollout log, how sure that is, what to change.

`measure` gives numbers (an `Audit`), `advise` sentences, `main_text` the page that `equipoise
audit` prints; `data_path` what was cut, dropped or lost before the loss. It reads our run
directories, TRL's completions, the dumps of verl, prime-rl, slime and SkyRL, and any Parquet, JSON
lines or CSV table. It sees coefficients, not gradients: what clipping, ratios and the optimizer add
is not in a rollout log.
"""

from equipoise.audit.advice import Advice, advise
from equipoise.audit.bootstrap import Estimate
from equipoise.audit.data_path import DataPath, data_path
from equipoise.audit.log import AuditError, Log
from equipoise.audit.measure import Audit, Measures, measure
from equipoise.audit.read import from_table, parse_columns, read
from equipoise.audit.render import main_text, page

__all__ = [
    "Advice",
    "Audit",
    "AuditError",
    "DataPath",
    "Estimate",
    "Log",
    "Measures",
    "advise",
    "data_path",
    "from_table",
    "main_text",
    "measure",
    "page",
    "parse_columns",
    "read",
]
