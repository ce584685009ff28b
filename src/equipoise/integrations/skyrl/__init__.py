"""SkyRL: `plugin` puts an objective into its two registries."""
