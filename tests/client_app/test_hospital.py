import pytest
import torch

from client_app.hospital import open_hospital
from client_app.models import Architecture
from strategies.settings import SettingsError
from tests.fakes import context, run_config


@pytest.mark.parametrize(
    ("given", "node_config", "name"),
    [
        ("", {}, "hospital-1"),
        ("", {"site": "Graz"}, "Graz"),
        ("registered", {"site": "Graz"}, "registered"),
    ],
)
def test_names(given, node_config, name):
    assert open_hospital(context(1, 3, run_config(), **node_config), given).name == name


def test_numbers_in_names_sort_as_numbers():
    names = [open_hospital(context(i, 12, run_config(partition="iid"))).name for i in (2, 11)]
    assert names == ["hospital-02", "hospital-11"]


@pytest.mark.parametrize("name", ["a/b", "..//x", "global", "St. Anna"])
def test_a_name_that_cannot_be_used_is_refused(name):
    with pytest.raises(SettingsError, match=f"name \\(site\\) is '{name}'"):
        open_hospital(context(0, 2, run_config(), site=name))


def test_what_the_hospital_says_of_its_data_set_wins():
    hospital = open_hospital(context(0, 2, run_config(dataset="npz:/x.npz"), dataset="digits"))
    assert hospital.settings.dataset == "digits"


def test_data_are_loaded_once_per_process():
    first, second = (open_hospital(context(0, 2, run_config())) for _ in range(2))
    assert first.data is second.data


def test_the_architecture_fits_the_images():
    hospital = open_hospital(context(0, 2, run_config(model="mlp", mlp__hidden="5", image_size=12)))
    assert hospital.architecture == Architecture("mlp", 1, 12, 12, 10, (5,))
    assert hospital.data.train.images.dtype == torch.uint8


def test_threads_are_those_of_the_settings_not_of_the_process():
    open_hospital(context(0, 2, run_config(cpu_threads=2)))
    assert torch.get_num_threads() == 2
    open_hospital(context(0, 2, run_config()))
    assert torch.get_num_threads() == 1
