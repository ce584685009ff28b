"""Into TRL and verl: a configuration as their launch,
and data sets and rollout logs as the files they read.
"""

from equipoise.integrations.data import export_data, export_rollouts
from equipoise.integrations.launch import ExportError, Launch, Setting
from equipoise.integrations.trl.export import export_trl
from equipoise.integrations.verl.export import export_verl

__all__ = [
    "ExportError",
    "Launch",
    "Setting",
    "export_data",
    "export_rollouts",
    "export_trl",
    "export_verl",
]
