import copy
import warnings

import lpips
import pytest
import torch

from gan.perceptual import BACKBONES, PairwiseLPIPS, distances


def images(count, channels, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, size, size, generator=generator) * 2 - 1


@pytest.fixture(scope="module", params=["squeeze", pytest.param("vgg", marks=pytest.mark.slow)])
def pair(request, tmp_path_factory):
    """The lpips package on torchvision's random weights, and ours on the same, from a file."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        torch.manual_seed(1)
        warnings.simplefilter("ignore")  # lpips calls torchvision in a way that is about to go
        package = lpips.LPIPS(net=request.param, pnet_rand=True, verbose=False)
    state = {  # "slice1.0.weight" of the package is torchvision's "features.0.weight"
        f"features.{name.partition('.')[2]}": value
        for name, value in package.net.state_dict().items()
    }
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.save(state, path)
    return package, PairwiseLPIPS(request.param, path)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "size"), [(1, 33), (3, 48)])
def test_equals_the_package_pair_by_pair(pair, channels, size):
    package, ours = pair
    x, y = images(3, channels, size), images(4, channels, size, seed=1)
    y[0] = 0.8 * x[0] + 0.2 * y[0]  # a pair of neighbours
    colours = (-1, 3, -1, -1)
    with torch.no_grad():
        expected = [
            [package(a.expand(colours), b.expand(colours)) for b in y.split(1)] for a in x.split(1)
        ]
        actual = ours(x, y)
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-5)
    assert actual[1:].min() > 0.005  # it is not the tolerance that makes them equal


def test_gradient_equals_the_packages(pair):
    # In single precision a ReLU near zero may be on in one and off in the other.
    package, ours = (copy.deepcopy(each).double() for each in pair)
    x, y = (images(2, 3, 40, seed).double().requires_grad_() for seed in (0, 1))
    pairs = package(x.repeat_interleave(2, dim=0), y.repeat(2, 1, 1, 1))
    expected = torch.autograd.grad(pairs.sum(), (x, y))
    actual = torch.autograd.grad(ours(x, y).sum(), (x, y))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("net", sorted(BACKBONES))
@pytest.mark.parametrize("size", [8, 16, 48])
def test_an_image_is_next_to_itself_and_gradients_stay_finite(net, size):
    x = images(3, 1, size)
    x[0] = 0  # one colour only
    x.requires_grad_()
    y = x.detach().clone().requires_grad_()
    matrix = PairwiseLPIPS(net, "untrained")(x, y)
    assert matrix.diagonal().max() < 1e-5
    assert matrix[0, 1] > 0.01
    matrix.sum().backward()
    assert x.grad.isfinite().all()
    assert y.grad.isfinite().all()


def test_dead_pixels_have_finite_gradients():
    """Where no channel answers, the unit vector is 0 / (0 + ε); the package's gradient is NaN."""
    distance = PairwiseLPIPS("vgg", "untrained")
    for layer in distance.layers:
        if isinstance(layer, torch.nn.Conv2d):
            assert layer.bias is not None
            torch.nn.init.constant_(layer.bias, -100.0)
    x = images(2, 3, 16).requires_grad_()
    matrix = distance(x, images(2, 3, 16, seed=1))
    matrix.sum().backward()
    assert (matrix == 0).all()
    assert (x.grad == 0).all()


def test_distances_are_those_of_the_features_in_double_precision():
    distance = PairwiseLPIPS("squeeze", "untrained")
    x = distance.features(images(5, 3, 32))
    y = x + 1e-3 * images(x.shape[1], 1, 1).flatten()  # cancels in ‖x‖² + ‖y‖² - 2xy
    expected = torch.cdist(x.double(), y.double()).square().float()
    torch.testing.assert_close(distances(x, y), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("net", "enlarge"), [("squeeze", 3), ("vgg", 2)])
def test_small_images_are_enlarged_to_what_the_network_takes(net, enlarge):
    """8 pixels are too few for 17 and 16: the next multiples are 24 and 16."""
    distance = PairwiseLPIPS(net, "untrained")
    x = images(2, 3, 8)
    large = torch.nn.functional.interpolate(x, scale_factor=enlarge, mode="bilinear")
    assert torch.equal(distance.features(x), distance.features(large))
    smallest = BACKBONES[net].smallest
    features = distance.features(images(1, 3, smallest))
    assert features.isfinite().all()
    with pytest.raises(RuntimeError, match=r"too small|can't be greater"):
        list(distance._taps(images(1, 3, smallest - 1)))


def test_untrained_networks_are_the_same_and_torch_s_own_random_numbers_stay():
    before = torch.get_rng_state()
    first, again = (PairwiseLPIPS("squeeze", "untrained") for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    x = images(2, 3, 32)
    assert torch.equal(first.features(x), again.features(x))


@pytest.mark.parametrize("net", sorted(BACKBONES))
def test_untrained_networks_answer_in_all_layers(net):
    """He et al.'s initial weights keep the scale; tiny activations would be blind to the image."""
    distance = PairwiseLPIPS(net, "untrained")
    for tap in distance._taps(images(2, 3, 64)):
        assert 0.05 < tap.std() < 20
        assert tap.ne(0).float().mean() > 0.2


def test_nothing_is_trained(pair):
    _, ours = pair
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert not ours.training


def test_a_distance_is_named_after_its_weights(pair, monkeypatch, tmp_path, caplog):
    _, ours = pair
    assert ours.name in {f"lpips-{net}" for net in BACKBONES}
    assert PairwiseLPIPS("squeeze", "untrained").name == "untrained-squeeze"
    assert not caplog.records
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("gan.perceptual.urlopen", no_network)
    assert PairwiseLPIPS("squeeze").name == "untrained-squeeze"
    assert "squeezenet1_1-b8a52dc0.pth" in caplog.text
    assert "no network" in caplog.text


def no_network(request, timeout):
    raise OSError("no network")


def test_the_cache_is_asked_before_the_network(pair, monkeypatch, tmp_path):
    _, ours = pair
    net = ours.name.removeprefix("lpips-")
    file = {"squeeze": "squeezenet1_1-b8a52dc0.pth", "vgg": "vgg16-397923af.pth"}[net]
    (tmp_path / "checkpoints").mkdir()
    state = {f"features.{name}": value for name, value in ours.layers.state_dict().items()}
    torch.save(state, tmp_path / "checkpoints" / file)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("gan.perceptual.urlopen", no_network)
    cached = PairwiseLPIPS(net)
    assert cached.name == ours.name
    x = images(2, 3, 32)
    assert torch.equal(cached.features(x), ours.features(x))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.pth.*torchvision's vgg16"):
        PairwiseLPIPS("vgg", tmp_path / "nothing.pth")


@pytest.mark.parametrize("content", ["another network", "no tensors", "text"])
def test_a_file_with_something_else_is_named(tmp_path, content):
    path = tmp_path / "other.pth"
    if content == "text":
        path.write_text("hello")
    else:
        other = {"features.0.weight": torch.zeros(64, 3, 11, 11)}
        torch.save(other if content == "another network" else [1], path)
    with pytest.raises(ValueError, match=r"other\.pth.*torchvision's vgg16"):
        PairwiseLPIPS("vgg", path)
