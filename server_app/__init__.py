"""The post office: the ServerApp, and the only code that writes results."""

from server_app.environment import missing_cluster, prefer_compiled, prepare_ray

# Flower imports Ray a moment after it has begun to import this package, and Ray hands the import
# path on to simulated hospitals.
prepare_ray()
MISSING_CLUSTER = missing_cluster()
prefer_compiled()
