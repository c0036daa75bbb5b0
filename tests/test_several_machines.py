"""A simulation on a Ray cluster that is there already (docs/several-machines.md)."""

import pytest
import ray
from ray.cluster_utils import Cluster

from benchmarks.simulation import run, superlink
from tests.fakes import context, models_of, run_config, run_here

SETTINGS = {"strategy": "cwt", "dataset": "digits", "model": "mlp", "seed": 1}
SETTINGS |= {"num-server-rounds": 1, "train.epochs": 1}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A cluster of two nodes of a core each: its address, and where each has its hospitals' stores.

    Ray starts what computes at a node with the node's environment, not with the SuperLink's.
    """
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # the path of a socket has some hundred characters
    stores = [tmp_path / "first", tmp_path / "second"]
    cluster = Cluster()
    try:
        for store in stores:
            variables = {"XDG_DATA_HOME": str(store)}
            cluster.add_node(num_cpus=1, env_vars=variables, include_dashboard=False)
        yield cluster.address, stores
    finally:
        ray.shutdown()
        cluster.shutdown()


# Ray's own processes are started with files that it leaves open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_hospitals_on_two_nodes_train_the_models_of_one_process(nodes, tmp_path):
    address, stores = nodes
    with superlink(tmp_path / "flower", RAY_ADDRESS=address) as flower:
        result = run(flower, tmp_path / "runs", 2, **SETTINGS)
    config = run_config(**SETTINGS, **{"output-dir": str(tmp_path / "here")})
    here, _ = run_here([context(index, 2, config) for index in range(2)])
    assert models_of(result) == models_of(here)
    assert all(list(store.glob("fedhandoff/hospital-*")) for store in stores)  # both worked
