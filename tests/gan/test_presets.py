import pytest

from gan.presets import PRESETS


@pytest.mark.parametrize(
    ("name", "resolution"), [("tiny", 16), ("small", 64), ("xray-256", 256), ("skin-256", 256)]
)
def test_resolutions(name, resolution):
    assert PRESETS[name].resolution == resolution


@pytest.mark.parametrize(
    ("size", "resolution"), [(4, 8), (8, 8), (9, 16), (16, 16), (17, 32), (28, 32), (99, 64)]
)
def test_a_preset_is_no_finer_than_the_images(size, resolution):
    """The smallest power of two that holds them, from 8 to the preset's own."""
    assert PRESETS["small"].fit(size).resolution == resolution


@pytest.mark.parametrize("name", ["xray-256", "skin-256"])
def test_the_papers_settings(name):
    """FedER IV.B.2, and R1 by the rule of StyleGAN2-ADA: 0.0002 · 256² / 32."""
    preset = PRESETS[name]
    assert (preset.batch_size, preset.learning_rate, preset.patience) == (32, 0.0025, 10_000)
    assert preset.r1_gamma == pytest.approx(0.4096)
    assert (preset.pretrained, preset.perceptual_net) == (True, "vgg")
