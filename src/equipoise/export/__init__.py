"""Into TRL and verl: a configuration as their launch, and data sets and rollout logs as the files they read."""

from equipoise.export.data import export_data, export_rollouts
from equipoise.export.launch import ExportError, Launch, Setting
from equipoise.export.trl import export_trl
from equipoise.export.verl import export_verl

__all__ = ["ExportError", "Launch", "Setting", "export_data", "export_rollouts", "export_trl", "export_verl"]
